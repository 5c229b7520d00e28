"""One torch thread for the tests' small tensors; OpenMP's idle threads sleep instead of spinning."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest
import torch

from tests.support.browser import launched


@pytest.fixture(autouse=True)
def one_thread():
    """A run sets the number of threads of its process: every test begins with one."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")  # not longer: while it runs, no other test of this process could use asyncio
def chromium():
    """A browser for the tests of pages."""
    with launched() as browser:
        yield browser
