"""`casa suite`: one table over many games, as the paper's over 57; runs for days, on one machine or several.

It is built on `casa.experiments` (plan, scheduler, run directories) and may import everything below `casa.cli`. Start
with `spec.py` (what is run), then `schedule.py` (train, evaluate, retry), `results.py` and `tables.py` (what is found).
"""
