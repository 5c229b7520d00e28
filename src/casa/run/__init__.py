"""Runs and their directories: training, checkpoints, metrics, display, interrupts, resume, load, evaluate.

May import everything below it, but not reports, experiments or benchmarks. Start with `train` and `resume` in
`training.py`; `agent.py` is the trained agent.
"""
