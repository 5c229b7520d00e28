import io

import pytest
from rich.console import Console

from casa.config.presets import LAPTOP, PRESETS
from casa.errors import UserError
from casa.heads import HEADS
from casa.report.tables import PAGE, gradient, print_recipe, print_recipes
from casa.tables import RECIPES, TARGETS


def printed(function, *args: str) -> str:
    console = Console(file=io.StringIO(), width=120)
    function(console, *args)
    return console.file.getvalue()


def test_every_head_has_a_formula_and_tau_only_where_the_head_is_tempered() -> None:
    for head in HEADS.values():
        assert ("τ" in head.formula) == head.tempered


def test_gradients_read_as_in_the_paper() -> None:
    assert gradient(RECIPES["ppo"]) == "0.5 L_V + J"
    assert gradient(RECIPES["r2d2"]) == "L_Q"
    assert gradient(RECIPES["ppo-casa"]) == "0.5 L_V + L_Q + J"
    assert gradient(RECIPES["casa"]) == "L_V + 10 L_Q + 10 J"
    assert gradient(RECIPES["impala"]) == "0.5 L_V + J + 0.01 H"
    assert gradient(RECIPES["ppo-pcgrad"]) == "0.5 L_V + J, pcgrad"


def test_all_agents_fit_on_one_screen() -> None:
    lines = printed(print_recipes).splitlines()
    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 120
    rows = {line.split()[0]: line for line in lines if line.split() and line.split()[0] in RECIPES}
    assert list(rows) == list(RECIPES)
    for name, line in rows.items():  # nothing wrapped, nothing cut
        assert HEADS[RECIPES[name]["agent.head"]].formula in line
        assert gradient(RECIPES[name]) in line
        assert TARGETS[RECIPES[name]["agent.targets"]].label in line
    assert "ε-greedy" in rows["r2d2"]
    assert "prioritized ×2" in rows["r2d2"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_page_shows_each_value_with_its_source(name: str) -> None:
    text = printed(print_recipe, name)
    assert text.startswith(f"{name}: ")
    assert "50,000,000 steps = 200,000,000 frames" in text
    assert "Table 8" in text
    assert RECIPES[name].sources["data.seq_len"] in text


def test_a_page_leaves_out_what_the_recipe_never_reads() -> None:
    ppo, r2d2, casa = (printed(print_recipe, name) for name in ("ppo", "r2d2", "casa"))
    assert "GAE λ" in ppo
    assert "clip ε" in ppo
    assert not any(word in ppo for word in ("temperature", "ρ-bar", "target network", "priority exponent"))
    assert "0.4^uniform(1, 8)" in r2d2
    assert "published R2D2" in r2d2
    assert "GAE λ" not in r2d2
    assert "ρ-bar" in casa
    assert "uniform" not in casa


def test_every_value_of_a_recipe_has_a_line() -> None:
    shown = [name for lines in PAGE.values() for line in lines for name in line.fields]
    changed = {name for table in PRESETS.values() for changes in table.values() for name in changes}
    assert len(shown) == len(set(shown))
    named = {name for recipe in RECIPES.values() for name in recipe.settings}
    assert set(shown) == (named | changed) - {"mode", "device"}


def test_the_laptop_preset_shows_what_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAPTOP, "impala", {"data.reuse": 7})
    assert "fifo ×7" in printed(print_recipes, "laptop")
    assert "fifo ×7" not in printed(print_recipes)
    text = printed(print_recipe, "casa", "laptop")
    assert "laptop preset" in text
    assert "Table 11" in text
    row = next(line for line in text.splitlines() if "temperature" in line)
    assert row.split()[2:] == ["0.02", "1", "laptop", "preset"]  # what will run, and what the paper prints
    row = next(line for line in text.splitlines() if "all 18 actions" in line)
    assert row.split()[-4:] == ["no", "yes", "laptop", "preset"]  # what the paper leaves at its default


def test_an_unknown_recipe_is_a_user_error() -> None:
    with pytest.raises(UserError, match="did you mean 'casa'"):
        printed(print_recipe, "cassa")
