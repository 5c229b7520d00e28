import importlib
import re
from pathlib import Path

import pytest

from casa.config.arguments import leaves
from casa.config.load import RunConfig
from casa.config.recipes import RECIPES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
NAMES = [name for name in QUOTED if re.fullmatch(r"casa(\.\w+)+", name)]
FILES = [name for name in QUOTED if re.fullmatch(r"[\w./-]+\.(md|py|toml)", name)]


def resolve(name: str) -> object:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("name", FILES)
def test_every_file_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_page_names_real_things() -> None:
    assert len(NAMES) > 40
    with pytest.raises(AttributeError):
        resolve("casa.heads.no_such_head")


def test_every_recipe_is_on_the_page() -> None:
    spans = {"ppo-type2", "ppo-type3", "ppo-type4"}  # written as `ppo-type1` to `ppo-type5`
    assert RECIPES.keys() - spans <= set(QUOTED)


def test_every_field_on_the_page_is_a_field() -> None:
    groups = {name.split(".")[0] for name in leaves(RunConfig)}
    fields = {name for name in QUOTED if re.fullmatch(r"[a-z]+\.[a-z_0-9]+", name) and name.split(".")[0] in groups}
    assert len(fields) > 25
    assert fields <= leaves(RunConfig).keys()
