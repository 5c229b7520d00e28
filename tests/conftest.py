"""Before torch is loaded: threads that have nothing to do sleep; and the tests' small tensors need one thread each."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch

torch.set_num_threads(1)
