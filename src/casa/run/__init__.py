"""A run directory and its life: training, checkpoints, metrics, display, interrupts, resume, load, evaluate.

May import everything below it, and nothing of reports, experiments or benchmarks. Start with `training.py`: `train`
and `resume`; a trained agent is `agent.py`.
"""
