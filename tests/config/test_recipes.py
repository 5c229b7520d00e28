import dataclasses

import pytest

from casa.config import recipes
from casa.config.recipes import LAPTOP, PRESETS, RECIPES, Recipe, get
from casa.errors import UserError
from casa.heads import HEADS

# (head, weights of L_V, L_Q and J, data): the systems of Tables 1, 2, 3, 5 and 6, written out again.
SYSTEMS = {
    "ppo": ("actor-critic", (0.5, 0, 1), "on-policy"),
    "ppo-v1": ("q-critic", (0.5, 0, 1), "on-policy"),
    "ppo-v2": ("q-critic", (0.5, 1, 1), "on-policy"),
    "ppo-casa": ("casa", (0.5, 1, 1), "on-policy"),
    "ppo-type1": ("type1", (0.5, 1, 1), "on-policy"),
    "ppo-type2": ("type2", (0.5, 1, 1), "on-policy"),
    "ppo-type3": ("type3", (0.5, 1, 1), "on-policy"),
    "ppo-type4": ("type4", (0.5, 1, 1), "on-policy"),
    "ppo-type5": ("type5", (0.5, 1, 1), "on-policy"),
    "r2d2": ("dueling", (0, 1, 0), "prioritized"),
    "r2d2-v1": ("dueling", (0.5, 1, 0), "prioritized"),
    "r2d2-casa": ("casa", (0.5, 1, 1), "prioritized"),
    "casa": ("casa", (1, 10, 10), "fifo"),
    "casa-no-dr": ("casa", (1, 10, 10), "fifo"),
    "impala": ("actor-critic", (0.5, 0, 1), "fifo"),
}

# Tables 9, 10 and 11, written out again.
FAMILIES = {
    "PPO": {
        "reuse": 1,
        "reward": "clip01",
        "burn_in": 0,
        "seq_len": 40,
        "batch": 8,
        "discount": 0.995,
        "backbone": "impala-shallow",
        "lstm": 0,
        "tau": 0.1,
        "clip": 0.2,
        "lam": 0.8,
        "targets": "gae",
        "policy_loss": "clip",
        "behaviour": "sample",
        "value_rescale": False,
    },
    "R2D2": {
        "reuse": 2,
        "reward": "raw",
        "burn_in": 0,
        "seq_len": 40,
        "batch": 8,
        "discount": 0.997,
        "backbone": "impala-shallow",
        "lstm": 0,
        "tau": 0.1,
        "n_step": 5,
        "epsilon_base": 0.4,
        "epsilon_range": (1, 8),
        "priority_exponent": 0.9,
        "replay_frames": 400_000,
        "targets": "n-step-q",
        "behaviour": "epsilon-greedy",
        "value_rescale": True,
        "target_period": 2500,
        "importance_exponent": 0.6,
        "eta": 0.9,
    },
    "DR-Trace": {
        "reuse": 2,
        "reward": "log",
        "burn_in": 40,
        "seq_len": 80,
        "batch": 64,
        "discount": 0.997,
        "backbone": "impala-deep",
        "lstm": 256,
        "tau": 1.0,
        "policy_loss": "score",
        "behaviour": "sample",
        "value_rescale": False,
    },
}

# Table 8.
SHARED = {
    "num_envs": 160,
    "lr": 5e-4,
    "warmup": 4000,
    "betas": (0.9, 0.98),
    "adam_eps": 1e-6,
    "weight_decay": 0.01,
    "clip_norm": 50,
    "publish_every": 25,
    "pull_every": 64,
    "steps": 50_000_000,
    "frames": 200_000_000,
}


def family_of(name: str) -> str:
    return {"ppo": "PPO", "r2d2": "R2D2"}.get(name.split("-")[0], "DR-Trace")


def test_the_table_holds_the_systems_of_the_paper_in_its_order() -> None:
    assert list(RECIPES) == list(SYSTEMS)


@pytest.mark.parametrize("name", SYSTEMS)
def test_row(name: str) -> None:
    recipe = RECIPES[name]
    assert (recipe.head, recipe.weights, recipe.data) == SYSTEMS[name]
    assert recipe.family == family_of(name)
    own = {"casa-no-dr": {"targets"}, "impala": {"targets"}}.get(name, set())
    expected = {**SHARED, **FAMILIES[recipe.family]}
    assert {k: getattr(recipe, k) for k in expected.keys() - own} == {k: expected[k] for k in expected.keys() - own}


def test_what_differs_inside_a_family() -> None:
    assert {name: row.policy_loss for name, row in RECIPES.items() if row.family == "R2D2"} == {
        "r2d2": "none",
        "r2d2-v1": "none",
        "r2d2-casa": "score",
    }
    assert (RECIPES["casa"].targets, RECIPES["casa"].rho_bar, RECIPES["casa"].c_bar) == (
        "dr-trace",
        1.05,
        1.05,
    )
    no_dr = dataclasses.replace(RECIPES["casa-no-dr"], name="", summary="", paper="")
    assert no_dr == dataclasses.replace(RECIPES["casa"], name="", summary="", paper="", targets="vtrace+retrace")
    impala = RECIPES["impala"]
    assert (impala.targets, impala.rho_bar, impala.c_bar, impala.entropy_cost) == ("vtrace", 1.0, 1.0, 0.01)
    assert all(row.entropy_cost == 0 for row in RECIPES.values() if row is not impala)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda row: row.name)
def test_a_row_is_consistent(recipe: Recipe) -> None:
    assert (recipe.policy_loss == "none") == (recipe.weights[2] == 0)
    outputs = HEADS[recipe.head].outputs
    if recipe.weights[1] > 0 or recipe.behaviour == "epsilon-greedy":
        assert set(outputs) & {"q", "advantage"}
    values = {f.name for f in dataclasses.fields(recipe)} - {"name", "summary", "paper", "family", "sources"}
    assert recipe.sources.keys() == values


def test_sources_name_the_table_that_prints_the_value() -> None:
    sources = RECIPES["ppo-casa"].sources
    assert (sources["lr"], sources["discount"], sources["weights"]) == (
        "Table 8",
        "Table 9",
        "Tables 2, 3, 5",
    )
    assert RECIPES["r2d2"].sources["target_period"] == "published R2D2"
    assert RECIPES["impala"].sources["rho_bar"] == "published IMPALA"
    assert RECIPES["casa"].sources["rho_bar"] == "Table 11"


def test_the_paper_preset_is_the_paper() -> None:
    assert all(get(name, "paper") == RECIPES[name] for name in RECIPES)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_preset_changes_what_it_lists_and_nothing_else(name: str, preset: str) -> None:
    paper, scaled = get(name), get(name, preset)
    listed = {**PRESETS[preset].get(paper.family, {}), **PRESETS[preset].get(name, {})}
    for f in dataclasses.fields(Recipe):
        if f.name == "sources":
            continue
        expected = listed.get(f.name, getattr(paper, f.name))
        assert getattr(scaled, f.name) == expected, f.name
        if f.name in listed:
            assert scaled.sources[f.name] == f"{preset} preset"


def test_presets_name_families_and_recipes_and_fields() -> None:
    fields = {f.name for f in dataclasses.fields(Recipe)}
    for table in PRESETS.values():
        assert table.keys() <= set(recipes.FAMILIES) | set(RECIPES)
        assert all(changes.keys() <= fields for changes in table.values())


def test_the_gpu_preset_has_small_batches_and_a_low_temperature() -> None:
    gpu = get("casa", "gpu")
    assert (gpu.tau, gpu.batch, gpu.lr, gpu.seq_len, gpu.burn_in, gpu.warmup) == (0.1, 32, 1e-3, 20, 20, 400)
    assert (gpu.lstm, gpu.backbone, gpu.num_envs) == (256, "impala-deep", 160)
    assert get("ppo-casa", "gpu") == get("ppo-casa")


def test_a_recipes_own_laptop_changes_come_after_its_familys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recipes.LAPTOP, "ppo-casa", {"batch": 3})
    assert get("ppo-casa", "laptop").batch == 3
    assert get("ppo", "laptop").batch == LAPTOP["PPO"]["batch"]


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="recipe 'ppo-cassa' is unknown; did you mean 'ppo-casa'"):
        get("ppo-cassa")
    with pytest.raises(UserError, match="preset 'labtop' is unknown; did you mean 'laptop'"):
        get("casa", "labtop")
