"""The README's example runs as it stands, and is as short as it claims."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_the_example_updates_a_plain_actor_critic():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 15
    names: dict = {}
    torch.manual_seed(0)
    exec(code, names)
    assert torch.isfinite(names["loss"])
    for layer in ("body", "advantage", "value"):
        assert names[layer].weight.grad.abs().max() > 0


def test_links_lead_somewhere():
    for page in (README, *README.parent.glob("docs/*.md")):
        # Mathematics has brackets too: a link leads to a file with an ending.
        for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
