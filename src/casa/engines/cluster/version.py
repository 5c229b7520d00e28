"""Whether two processes run the same code: version, and hash of every file of the package."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import casa
from casa.errors import UserError


@cache
def code_version() -> str:
    """`casa VERSION (HASH), torch VERSION, Python VERSION`."""
    root = Path(casa.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return f"casa {casa.__version__} ({digest.hexdigest()[:8]}), torch {version('torch')}, Python {python}"


def require_same_code(expected: str) -> None:
    """UserError if this process runs other code than `expected`, the learner's `code_version`."""
    if (mine := code_version()) != expected:
        raise UserError(
            f"node {platform.node()} has {mine}, the learner has {expected}: install the same version on every node"
        )
