"""The tests of the fault campaign (`benchmarks/faults.py`): each is a function of a `Lab` that asserts a promise."""
