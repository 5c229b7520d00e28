"""Compiled steps."""

import torch

from casa.runtime.compiled import Compiled


def test_many_runs_of_a_process_are_compiled(monkeypatch):
    """Each compiles the same functions for weights of its own; torch's default is eight versions of a function."""
    original = torch.compile
    monkeypatch.setattr("torch.compile", lambda f, **options: original(f, backend="eager", **options))

    class Run:
        def __init__(self, number):
            self.weight = number

        def step(self):
            return torch.ones(()) * self.weight

    runs = [Run(number) for number in range(12)]
    assert [Compiled(run.step, fall_back=False)().item() for run in runs] == list(range(12))
