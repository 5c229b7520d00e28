import itertools
import re
import typing
from pathlib import Path

import pytest
import torch
import yaml

from casa.config import recipes
from casa.config.arguments import leaves
from casa.config.load import RunConfig, differences, from_recipe, from_yaml, load_config, make_config, read_run, to_yaml
from casa.config.presets import PRESETS
from casa.config.ranges import Range
from casa.engines.resolve import pick_backbone
from casa.errors import UserError
from casa.tables import RECIPES

LAPTOP = ("--preset", "laptop")


@pytest.mark.parametrize(("name", "preset"), list(itertools.product(RECIPES, PRESETS)))
def test_every_recipe_is_a_valid_configuration_that_survives_yaml(name: str, preset: str) -> None:
    config = make_config({"recipe": name, "preset": preset})
    assert (config.recipe, config.preset) == (name, preset)
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_a_recipe_reaches_the_configuration(preset: str) -> None:
    config = from_recipe("casa", preset)
    settings = recipes.get("casa", preset).settings
    assert {name: value_of(config, name) for name in settings} == settings


def value_of(config: RunConfig, dotted: str) -> object:
    value: object = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def test_defaults_then_recipe_then_file_then_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("recipe: ppo\nlearner: {lr: 1e-4, warmup: 7}\ndata: {batch: 5}\nsteps: 1e5\nseed: 3\n")
    config = load_config([*LAPTOP, "--config", str(file), "--learner.warmup", "9", "--steps", "2_000"])
    assert config.log.every_seconds == 5.0  # default
    assert config.data.seq_len == recipes.get("ppo", "laptop")["data.seq_len"]  # recipe and preset
    assert (config.learner.lr, config.data.batch, config.seed) == (1e-4, 5, 3)  # file over recipe and default
    assert (config.learner.warmup, config.steps) == (9, 2000)  # command line over file
    assert load_config(LAPTOP, file=file).learner.warmup == 7


def test_recipe_and_preset_come_from_the_command_line_then_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("recipe: ppo\npreset: paper\n")
    assert (load_config((), file).recipe, load_config((), file).preset) == ("ppo", "paper")
    config = load_config(["--recipe", "r2d2", *LAPTOP], file)
    assert (config.recipe, config.preset, config.agent.head) == ("r2d2", "laptop", "dueling")


def test_the_preset_follows_the_machine_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, preset in ((True, "gpu"), (False, "laptop")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        config = load_config(["--recipe", "casa"])
        assert config.preset == preset
        assert config.env.num_envs == recipes.get("casa", preset)["env.num_envs"]
        assert f"preset: {preset}" in to_yaml(config)


@pytest.mark.parametrize(
    "argv",
    [
        ["--env", "CartPole-v1", "--env.num-envs", "3"],
        ["--env=CartPole-v1", "--env.num_envs=3"],
        ["--env.id", "CartPole-v1", "--env.num-envs", "3"],
    ],
)
def test_env_is_short_for_its_id(argv: list[str]) -> None:
    config = load_config([*LAPTOP, *argv])
    assert (config.env.id, config.env.num_envs) == ("CartPole-v1", 3)


def test_env_in_a_file_is_short_for_its_id() -> None:
    assert from_yaml("{preset: laptop, env: CartPole-v1}").env.id == "CartPole-v1"
    assert from_yaml("{preset: laptop, env: {id: CartPole-v1, num_envs: 3}}").env.num_envs == 3


def test_arguments_of_an_environment_may_be_nested_in_a_file() -> None:
    config = from_yaml("{preset: laptop, env: {kwargs: {map_name: 8x8, is_slippery: false, desc: null}}}")
    assert yaml.safe_load(config.env.kwargs) == {"map_name": "8x8", "is_slippery": False, "desc": None}
    assert from_yaml(to_yaml(config)) == config
    again = load_config([*LAPTOP, "--env.kwargs", config.env.kwargs])
    assert again.env.kwargs == config.env.kwargs


def test_the_yaml_is_complete() -> None:
    config = make_config({"preset": "laptop", "compile": "yes", "learner.betas": [0.5, 0.25], "run_dir": "a b"})

    def dotted(node: dict[str, object], prefix: str = "") -> set[str]:
        names = set()
        for key, value in node.items():
            names |= dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
        return names

    assert dotted(yaml.safe_load(to_yaml(config))) == leaves(RunConfig).keys()
    again = from_yaml(to_yaml(config))
    assert (again.compile, again.learner.betas, again.run_dir) == ("yes", (0.5, 0.25), "a b")
    assert again == config


def test_flags_for_true_and_false(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("preset: paper\ncompile: yes\nagent: {value_rescale: true}\nlog: {wandb: false}\n")
    config = load_config((), file)
    assert (config.compile, config.agent.value_rescale, config.log.wandb) == ("yes", True, False)
    config = load_config(["--compile", "no", "--agent.no-value-rescale", "--log.wandb"], file)
    assert (config.compile, config.agent.value_rescale, config.log.wandb) == ("no", False, True)


def test_the_run_directory_names_recipe_environment_and_seed() -> None:
    config = make_config({"recipe": "ppo", "preset": "laptop", "env": "ALE/Breakout-v5", "seed": 4})
    assert config.run_dir == "runs/ppo-ALE-Breakout-v5-4"
    assert make_config({"preset": "laptop", "run_dir": "here"}).run_dir == "here"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--agent.tau", "1e-300"], "agent.tau must be from 1e-06 to 1e+06, got 1e-300"),
        (["--learner.lr", "-1"], "learner.lr must be > 0, got -1"),
        (["--learner.lr", "nan"], "learner.lr must be > 0, got nan"),
        (["--learner.clip-norm", "inf"], "learner.clip_norm must be > 0, got inf"),
        (["--steps", "0"], "steps must be >= 1, got 0"),
        (["--steps", "1.5"], "--steps: '1.5' is not a whole number"),
        (["--agent.discount", "1.1"], "agent.discount must be between 0 and 1, got 1.1"),
        (["--learner.betas", "0.9", "1"], "learner.betas must be at least 0 and below 1, got 1"),
        (["--env.num-envs", "0"], "env.num_envs must be an integer from 1 to 100000, got 0"),
        (["--learner.lrr", "1"], "unknown flag --learner.lrr; did you mean --learner.lr?"),
        (["--lr", "1"], "unknown flag --lr; did you mean --learner.lr?"),
        (["--num_envs", "1"], "unknown flag --num_envs; did you mean --env.num-envs?"),
        (["--env.num-env", "1"], "unknown flag --env.num-env; did you mean --env.num-envs?"),
        (["--recipe", "cassa"], "recipe 'cassa' is unknown; did you mean 'casa'?"),
        (["--preset", "lap-top"], "preset 'lap-top' is unknown; did you mean 'laptop'?"),
        (["--agent.head", "cas"], "agent.head 'cas' is unknown; did you mean 'casa'?"),
        (["CartPole-v1"], "unexpected argument 'CartPole-v1'"),
        (["--config", "nowhere.yaml"], "cannot read the configuration nowhere.yaml: No such file"),
        (["--recipe", "impala", "--agent.weights", "1", "1", "1"], "the actor-critic head has none; use 0 for L_Q"),
        (["--recipe", "impala", "--agent.targets", "dr-trace"], "agent.targets 'dr-trace' needs Q"),
        (["--recipe", "ppo", "--agent.behaviour", "epsilon-greedy"], "agent.behaviour 'epsilon-greedy' needs Q"),
        (["--checkpoint.exact"], "checkpoint.exact needs checkpoint.every_steps, got 0"),
        (["--checkpoint.exact", "--mode", "async"], "checkpoint.exact needs mode 'sync', got 'async'"),
        (
            ["--checkpoint.exact", "--checkpoint.every-steps", "9", "--checkpoint.replay", "no"],
            "checkpoint.exact needs checkpoint.replay 'auto' or 'yes', got 'no'",
        ),
        (["--checkpoint.every-steps", "-1"], "checkpoint.every_steps must be >= 0, got -1"),
        (["--net.value-backbone", "--net.lstm", "9"], "net.value_backbone needs net.lstm 0, got 9"),
        (["--recipe", "ppo-v2", "--net.value-backbone"], "needs an output for V, but agent.head 'q-critic'"),
        (["--recipe", "casa", "--agent.policy-loss", "none"], "agent.policy_loss 'none' leaves nothing to weigh"),
        (["--recipe", "casa", "--agent.weights", "0", "0", "0"], "agent.weights are all 0"),
        (["--recipe", "r2d2", "--agent.epsilon-range", "8", "1"], "agent.epsilon_range (8.0, 1.0) must go from"),
        (["--recipe", "r2d2", "--data.replay-frames", "99"], "at least 1344, got 99"),
        (["--recipe", "r2d2", "--data.min-fill", "1e6"], "data.min_fill must be <= data.replay_frames 100000"),
        (["--recipe", "laser", "--data.replay-frames", "99"], "must hold one sequence of every environment"),
        (
            ["--recipe", "laser", "--data.batch", "12"],
            "data.kind 'mixed' needs a data.batch that data.reuse 8 divides, got 12: one in 8 sequences of a batch is "
            "new; use 16",
        ),
        (["--recipe", "ppo", "--agent.trust-region", "1"], "agent.targets 'gae' has none; use 0 or 'vtrace'"),
        (
            ["--recipe", "casa", "--agent.trust-region", "1", "--agent.behaviour", "epsilon-greedy"],
            "agent.trust_region needs agent.behaviour 'sample', got 'epsilon-greedy'",
        ),
    ],
)
def test_a_mistake_names_the_field_the_value_and_what_is_near(argv: list[str], sentence: str) -> None:
    preset = () if "--preset" in argv else LAPTOP
    size = ("--env.num-envs", "64", "--data.seq-len", "20", "--data.burn-in", "0") if "r2d2" in argv else ()
    with pytest.raises(UserError) as caught:
        load_config([*preset, *size, *argv])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learner: {lrr: 1}", "run.yaml: field 'learner.lrr' is unknown; did you mean 'learner.lr'?"),
        ("stesp: 1", "run.yaml: field 'stesp' is unknown; did you mean 'steps'?"),
        ("learner: 3", "run.yaml: field 'learner' is unknown"),
        ("learner: {lr: fast}", "run.yaml: Error parsing --learner.lr: could not convert string to float: 'fast'"),
        ("compile: maybe", "run.yaml: invalid choice 'maybe' for argument '--compile'"),
        ("log: {wandb: maybe}", "run.yaml: log.wandb must be true or false, got 'maybe'"),
        ("learner: {lr: true}", "could not convert string to float: 'True'"),
        ("agent: {weights: [1, 2]}", "run.yaml: Missing value for argument '--agent.weights'"),
        ("agent: {weights: [1, 2, 3, 4]}", "run.yaml: unexpected argument '4'"),
        ("agent: {head: cas}", "agent.head 'cas' is unknown; did you mean 'casa'?"),
        ("steps: [", "run.yaml is not plain YAML"),
        ("- steps", "run.yaml must hold fields like 'steps: 1000000', got list"),
        ("learner: {lr: -1}", "learner.lr must be > 0, got -1"),
        ("recipe: cassa", "recipe 'cassa' is unknown; did you mean 'casa'?"),
    ],
)
def test_a_mistake_in_a_file_names_the_file_too(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        load_config(LAPTOP, file)
    assert "\n" not in str(caught.value)


def test_a_field_that_is_new_is_no_difference() -> None:
    now = to_yaml(load_config(LAPTOP))
    before = re.sub(r"  exact: .*\n", "", now).replace("keep: 3", "keep: 4")
    assert before.count("\n") == now.count("\n") - 1
    lacking, changed = differences(before, now)
    assert not lacking and [text.split()[0] for text in changed] == ["checkpoint.keep"]


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("")
    assert load_config(LAPTOP, file) == load_config(LAPTOP)


def test_every_number_has_a_range() -> None:
    config = from_recipe("casa", "laptop")
    for name, hint in leaves(RunConfig).items():
        value = value_of(config, name)
        first = value[0] if isinstance(value, tuple) and value else value
        closed = typing.get_origin(hint) is typing.Literal
        if isinstance(first, (int, float)) and not isinstance(first, bool) and not closed:
            assert any(isinstance(mark, Range) for mark in typing.get_args(hint)[1:]), name


def test_a_field_without_a_value_in_a_file_keeps_its_default(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("run_dir:\nsteps:\nlearner: {lr: }\nenv: CartPole-v1\n")
    assert load_config(LAPTOP, file) == load_config([*LAPTOP, "--env", "CartPole-v1"])


def test_reading_a_run_never_looks_at_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({"recipe": "ppo-casa", "preset": "laptop", "learner.lr": 3e-4})
    text = to_yaml(config)
    monkeypatch.setattr(RECIPES, "_entries", {})  # as if the recipe had been renamed, or its values edited
    assert read_run(text, "config.yaml") == config
    for changed, sentence in (
        (re.sub(r"  head: .*\n", "", text), "the configuration lacks agent.head"),
        ("", "the configuration lacks recipe"),
        (re.sub(r"  tau: .*\n", "  tau: 0\n", text), "agent.tau must be from 1e-06 to 1e+06, got 0"),
        (text.replace("  tau:", "  tua:"), "field 'agent.tua' is unknown; did you mean 'agent.tau'?"),
    ):
        with pytest.raises(UserError, match=re.escape(f"config.yaml: {sentence}")):
            read_run(changed, "config.yaml")


def test_a_run_of_an_earlier_version_is_read_by_the_old_names() -> None:
    config = make_config({"preset": "laptop", "env.group_size": 8, "log.diagnostics_every": 5})
    text = to_yaml(config).replace("diagnostics_every:", "angles_every:").replace("group_size:", "batch:")
    old = re.sub(r"(plugins|callbacks): \[\]\n", "", text)
    assert old.count("\n") == text.count("\n") - 2
    assert read_run(old, "config.yaml") == config


def test_the_backbone_follows_the_observations() -> None:
    paper = from_recipe("casa", "paper")
    assert [pick_backbone(paper, kind) for kind in ("image", "vector", "grid")] == ["impala-deep", "mlp", "grid"]
    assert pick_backbone(from_recipe("casa", "laptop"), "image") == "impala-shallow"
    chosen = make_config({"preset": "laptop", "env": "CartPole-v1", "net.backbone": "impala-deep"})
    assert pick_backbone(chosen, "image") == "impala-deep"
    with pytest.raises(UserError, match=r"'impala-deep' cannot read the vector observations of CartPole-v1; use 'mlp'"):
        pick_backbone(chosen, "vector")


def test_help_shows_nested_fields_with_the_recipes_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        load_config(["--recipe", "ppo", "--preset", "paper", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "--learner.lr" in out
    assert "--config FILE" in out
    assert "0.995" in out  # the discount of ppo


def test_tau_may_not_fall_out_of_its_range():
    base = {"recipe": "casa", "agent.tau": 1e-5}
    assert make_config({**base, "agent.tau_decay": 0.1}).agent.tau_decay == 0.1
    with pytest.raises(UserError, match=r"1e-05 times agent\.tau_decay 0\.01 must be .*; use agent\.tau_decay 0\.1$"):
        make_config({**base, "agent.tau_decay": 0.01})
    for tau in (3e-6, 7e-6):  # the advice holds
        with pytest.raises(UserError) as caught:
            make_config({**base, "agent.tau": tau, "agent.tau_decay": 0.1})
        advice = float(str(caught.value).rpartition(" ")[2])
        assert make_config({**base, "agent.tau": tau, "agent.tau_decay": advice}).agent.tau_decay < 0.4


@pytest.mark.parametrize("preset", ["paper", "classic"])
@pytest.mark.parametrize(
    ("recipe", "field", "value"),
    [
        ("laser", "agent.targets", "gae"),
        ("casa-plus", "agent.targets", "gae"),
        ("casa-plus", "agent.behaviour", "epsilon-greedy"),
    ],
)
def test_a_trust_region_of_the_recipe_stays(preset, recipe, field, value):
    """Without it and without traces, replayed data would be taken for new."""
    base = {"env": "CartPole-v1", "preset": preset, "recipe": recipe}
    assert make_config(base).agent.trust_region == 0.3
    with pytest.raises(UserError, match=r"agent\.trust_region"):
        make_config({**base, field: value})


def test_a_trust_region_of_the_preset_gives_way_to_targets_without_traces():
    base = {"env": "CartPole-v1", "preset": "classic", "recipe": "casa"}
    assert make_config(base).agent.trust_region == 0.3
    for name, value in (("agent.targets", "gae"), ("agent.behaviour", "epsilon-greedy")):
        assert make_config({**base, name: value}).agent.trust_region == 0
        assert make_config({**base, name: value, "agent.trust_region": None}).agent.trust_region == 0
        flags = [f"--{key}={value}" for key, value in {**base, name: value}.items()]
        assert load_config(flags).agent.trust_region == 0
        with pytest.raises(UserError, match=r"agent\.trust_region"):
            load_config([*flags, "--agent.trust-region", "0.3"])
        with pytest.raises(UserError, match=r"agent\.trust_region"):
            make_config({**base, name: value, "agent.trust_region": 0.3})
