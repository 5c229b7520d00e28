"""One run over a Ray cluster: rollout workers send sequences, the learner's process owns ring, sampler and learner.

Start with `worker.py` (what a worker does), then `crew.py` (calls, losses, replacements), then `loop.py`. Only the
functions that talk to Ray import it.
"""
