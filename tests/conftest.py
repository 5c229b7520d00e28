"""Before torch is loaded: threads that have nothing to do sleep, so that they leave the cores to those that have."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
