"""Access to the machine: devices, memory, threads, CUDA streams and graphs, stopwatches, seeds.

May import `casa.errors` only. The CUDA helpers are no-ops or trivial on a CPU, so that callers have one code path.
Start with `resources.py` (which device, how much memory), then `streams.py` (order between two CUDA streams).
"""
