"""The training system: its parts (environments, actors, ring, sampler, learner) and the loops that drive them.

May import the mathematics, the runtime, configuration, environments, rollout and learning. Start with `system.py` (the
parts of one run) and `loops.py` (the synchronous and the asynchronous loop).
"""
