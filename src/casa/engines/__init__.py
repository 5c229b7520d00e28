"""Who acts and who learns where: the parts of a run, and the loops that drive them.

May import everything below it: the mathematics, the runtime, configuration, environments, rollout and learning.
Start with `system.py` (the parts of one run) and `loops.py` (the synchronous and the overlapping loop).
"""
