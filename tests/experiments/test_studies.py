"""Studies as data: the paper's, and those of a file."""

from pathlib import Path

import pytest
import yaml

from casa.config.load import make_config, settings_of
from casa.errors import UserError
from casa.experiments.studies import ENV_SETS, STUDIES, choose, plan, read_study


def write(tmp_path, **study):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


def test_the_papers_studies_have_the_papers_versions():
    sizes = {name: len(study.versions) for name, study in STUDIES.items()}
    assert sizes == {"motivation": 7, "ablation": 6, "drtrace": 2}
    for study in STUDIES.values():
        for settings in study.versions.values():
            make_config(settings)


def test_a_plan_is_a_product_with_complete_seeds_first(tmp_path):
    study = choose("ablation", envs="CartPole-v1,Acrobot-v1", steps=5000, seeds=2, recipes="ppo-casa,ppo-type5")
    runs = plan(study, tmp_path)
    assert len({run.path for run in runs}) == len(runs) == 8
    assert [run.seed for run in runs] == [0] * 4 + [1] * 4
    assert {run.settings["seed"] for run in runs} == {0, 1}
    assert all(run.config.preset == "classic" and run.config.steps == 5000 for run in runs)


def test_one_measurement_of_a_whole_batch_per_row(tmp_path):
    run = plan(choose("ablation", envs="minatar", steps=5000, seeds=1), tmp_path)[0]
    data = run.config.data
    assert run.settings["log.diagnostics_sequences"] == data.batch
    assert run.settings["log.every_steps"] * data.reuse == 100 * data.batch * data.seq_len
    assert run.config.net.hidden == 128 and run.config.device == "cpu"
    make_config(run.settings)  # what the run will read


def test_two_studies_share_the_directory_of_a_common_run(tmp_path):
    paths = [
        {r.path for r in plan(choose(name, envs="CartPole-v1", steps=10, seeds=1), tmp_path)} for name in STUDIES
    ]
    assert {path.parts[-3] for path in paths[0] & paths[1]} == {"ppo-casa"}


def test_a_file(tmp_path):
    file = write(
        tmp_path,
        recipes={"cold": {"recipe": "casa", "agent.tau": 0.05}, "ppo": {}},
        envs=["CartPole-v1"],
        steps=1000,
        seeds=2,
        settings={"learner.lr": 1e-4},
    )
    study = choose(str(file))
    runs = plan(study, tmp_path)
    assert study.name == "mine" and [run.version for run in runs] == ["cold", "ppo"] * 2
    assert runs[0].config.agent.tau == 0.05 and runs[0].config.learner.lr == 1e-4
    assert runs[1].config.recipe == "ppo"
    assert read_study(write(tmp_path, recipes=["casa"], envs="minatar", steps=5)).envs == ENV_SETS["minatar"].envs


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"recipe": ["casa"]}, "key 'recipe' is unknown; did you mean 'recipes'?"),
        ({"recipes": ["casaa"]}, "did you mean 'casa'?"),
        ({"steps": 0}, "steps"),
        ({"seeds": -1}, "seeds must be >= 1, got -1"),
        ({"steps": "many"}, "steps has the wrong type, got 'many'"),
        ({"figure": "ablations"}, "did you mean 'ablation'?"),
        ({"envs": "minatari"}, "did you mean 'minatar'?"),
        ({"recipes": {"a": 5}}, "recipes.a must be settings"),
        ({"settings": {"learner.lrr": 1}}, "did you mean 'learner.lr'?"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, wrong, words):
    good = {"recipes": ["casa"], "envs": ["CartPole-v1"], "steps": 100}
    file = write(tmp_path, **{**good, **wrong})
    with pytest.raises(UserError) as error:
        plan(choose(str(file)), tmp_path)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_unknown_names(tmp_path):
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'"):
        plan(choose("ablation", envs="CartPol-v1"), tmp_path)
    with pytest.raises(UserError, match="did you mean 'ablation'"):
        choose("ablate")
    with pytest.raises(UserError, match="did you mean 'ppo-type1'"):
        choose("ablation", recipes="ppo-tyep1")
    with pytest.raises(UserError, match="cannot read the study"):
        choose(str(Path("nowhere.yaml")))


def test_flags_of_train_become_settings():
    assert settings_of(["--learner.lr", "1e-3", "--preset=laptop"]) == {"learner.lr": 1e-3, "preset": "laptop"}
    assert settings_of(["--net.hidden=256"]) == {"net.hidden": 256}  # as the default, but asked for
    assert settings_of([]) == {}
    for flags in (["--seed", "3"], ["--recipe", "casa"], ["--env", "Pong"]):
        with pytest.raises(UserError):
            settings_of(flags)
