"""One learner step, from a batch of sequences to new weights: objective, gradients, optimizer.

May import the mathematics, the runtime, the configuration and `casa.rollout`. Start with `Learner.step` in
`learner.py`; `objective.py` turns network outputs into targets and losses; `optimizer.py` applies the gradient.
"""
