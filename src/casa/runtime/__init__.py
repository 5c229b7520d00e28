"""What the machine is and how it is used: devices, memory, threads, CUDA streams and graphs, stopwatches.

May import `casa.errors` only. Everything here is a no-op or trivial on a CPU, so that callers have one code path.
Start with `resources.py` (which device, how much memory), then `streams.py` (order between two CUDA streams).
"""
