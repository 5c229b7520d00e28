"""Acting and storing trajectories: the actor, the trajectory ring, and the samplers that feed the learner.

May import the mathematics, the runtime, configuration and environments. Start with `actor.py` (one step of the
environments), then `writer.py` and `ring.py` (what is stored), then `samplers.py` (what the learner sees).
"""
