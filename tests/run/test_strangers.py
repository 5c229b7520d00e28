"""A run directory from a stranger or after a mishap: bounded, in one sentence, and nothing is overwritten."""

import re
import shlex
import shutil
import sys
import tracemalloc
from pathlib import Path

import pytest
from tests.support.runs import again, is_due, rows, run, saved_steps

import casa
from casa import cli
from casa.config.load import differences, load_config
from casa.errors import UserError, printable
from casa.run import checkpoint
from casa.run.manifest import LARGEST_META

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fault_tests.strangers import BOMB
from fault_tests.strangers import sign as forge


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run("casa", tmp_path_factory.mktemp("made") / "run", steps=200)


@pytest.fixture
def path(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def refused(path, command, capsys, *more):
    """The one sentence of a command that must refuse; Python's memory must not grow meanwhile."""
    tracemalloc.start()
    assert cli.main([command, str(path), *more]) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    error = capsys.readouterr().err
    assert error.startswith("casa: ") and error.count("\n") == 1 and error[:-1].isprintable() and len(error) < 2100
    assert peak < 200 * 2**20
    return error


@pytest.mark.parametrize("text", [BOMB, "a: " + 10_000 * "[", "a: 2001-99-99", "a: " + 10_000 * "9", "- 1"])
def test_hostile_yaml_is_refused(text, path, capsys):
    forge(path, lambda meta: meta.update(config=text))
    refused(path, "eval", capsys)
    refused(path, "resume", capsys)
    with pytest.raises(UserError):
        casa.load(path)


def test_hostile_config_file_is_refused_and_left_alone(path, capsys):
    (path / "config.yaml").write_text(BOMB)
    assert "it uses an alias" in refused(path, "resume", capsys)
    assert (path / "config.yaml").read_text() == BOMB


def test_a_users_own_file_may_use_aliases(tmp_path):
    (tmp_path / "mine.yaml").write_text("agent: {weights: &w [1.0, 1.0, 1.0]}\nlearner: {betas: [0.9, 0.99]}\n")
    assert load_config(["--preset", "laptop"], tmp_path / "mine.yaml").agent.weights == (1.0, 1.0, 1.0)


def test_a_network_larger_than_its_weights_is_not_built(path, capsys, monkeypatch):
    monkeypatch.setattr("casa.run.agent.build_network", lambda *_: pytest.fail("the network was built"))
    monkeypatch.setattr("casa.run.training.build_system", lambda *_: pytest.fail("the system was built"))
    forge(path, lambda meta: meta.update(config=meta["config"].replace("hidden: 16", "hidden: 4000000")))
    assert "another network" in refused(path, "eval", capsys)
    before = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(before.replace("hidden: 16", "hidden: 4000000"))
    assert "linear1.weight is 16 x 4 in the checkpoint" in refused(path, "resume", capsys, "--steps", "300")


def test_large_metadata_is_not_read(path, capsys):
    forge(path, lambda meta: meta.update(more="x" * LARGEST_META))
    assert "meta.json has 16,7" in refused(path, "eval", capsys)
    with pytest.raises(ValueError, match="checkpoint meta has"):
        checkpoint.save(path, 999, {}, {"more": "x" * LARGEST_META})


CHANGES = {
    "no system": lambda meta: meta.pop("system"),
    "system is a list": lambda meta: meta.update(system=[]),
    "steps is text": lambda meta: meta["system"].update(steps="many"),
    "returns of text": lambda meta: meta.update(returns=["good"]),
    "means is None": lambda meta: meta.update(means=None),
    "no config": lambda meta: meta.pop("config"),
    "config is a number": lambda meta: meta.update(config=7),
    "no spec": lambda meta: meta.pop("spec"),
    "spec is text": lambda meta: meta.update(spec="CartPole"),
    "observations of 10^12 numbers": lambda meta: meta["spec"]["observation"].update(shape=[10**12]),
    "an observation of objects": lambda meta: meta["spec"].update(obs_dtype="O"),
    "negative sizes": lambda meta: meta["spec"].update(obs_shape=[-4]),
    "10^9 actions": lambda meta: meta["spec"]["actions"].update(choices=[10**9]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_signed_but_malformed_metadata_is_one_sentence(change, path, capsys):
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != ".lock"}
    forge(path, CHANGES[change])
    refused(path, "resume", capsys, "--steps", "300", "--lr", "1e-4")
    assert {name: (path / name).read_bytes() for name in before} == before  # logs are not cut either
    if list(CHANGES).index(change) >= list(CHANGES).index("no config"):
        refused(path, "eval", capsys)


def test_names_are_printed_without_their_escape_sequences(path, capsys):
    hostile = "\\e]0;owned\\a\\e[2J\u202emod:Env"
    forge(path, lambda meta: meta.update(config=meta["config"].replace("id: CartPole-v1", f'id: "{hostile}"')))
    (path / "config.yaml").unlink()
    for command in ("eval", "resume"):
        assert r"\x1b]0;owned\x07\x1b[2J\u202emod:Env, which runs code" in refused(path, command, capsys)


def test_printable():
    assert printable("π = softmax(A/τ)") == "π = softmax(A/τ)"
    assert printable("a\n\x1b[31m\x9b\u200b") == r"a\n\x1b[31m\x9b\u200b"
    assert len(printable("x" * 10**6)) < 2100


class TestConfiguration:
    @pytest.mark.parametrize("text", ["", "# nothing\n", None, "learner:\n  lr: 0.001\n"])
    def test_what_is_lacking_comes_from_the_checkpoint(self, text, path):
        before = (path / "config.yaml").read_text()
        (path / "config.yaml").unlink()
        if text is not None:
            (path / "config.yaml").write_text(text)
        said = again(path, steps=400, lr=1e-4)
        assert "lacks" in said and "taken from" in said
        changed = differences(before, (path / "config.yaml").read_text())[1]
        assert [each.split()[0] for each in changed] == (["learner.lr"] if text and "lr" in text else [])
        assert is_due(rows(path)[-1]["step"], 400)

    def test_what_was_changed_is_said(self, path):
        text = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(re.sub(r"discount: (.*)", "discount: 0.5", text))
        assert "agent.discount 0.5 (was " in again(path, steps=400, lr=1e-4)

    def test_a_refusal_leaves_it_alone(self, path, capsys):
        (path / "config.yaml").write_text("net:\n  hidden: 17\n")
        assert "in which was changed: net.hidden 17 (was 16)" in refused(path, "resume", capsys, "--steps", "300")
        (path / "config.yaml").write_text("")
        assert "give --lr" in refused(path, "resume", capsys, "--steps", "300")
        assert (path / "config.yaml").read_text() == ""
        (path / "config.yaml").write_text("steps: 2\0")
        assert "config.yaml" in refused(path, "resume", capsys)


@pytest.mark.parametrize("name", ["a[/red]x", "lr[seed1]", "it's :smile:"])
def test_brackets_and_quotes_in_a_path(name, tmp_path, capsys):
    where = tmp_path / name
    flags = ["--env", "CartPole-v1", "--steps", "100", "--log.tensorboard", "no", "--run-dir", str(where)]
    assert cli.main(["train", *flags]) == 0
    assert f"{where}/config.yaml" in capsys.readouterr().out
    assert cli.main(["train", *flags]) == 2
    assert f"casa resume {shlex.quote(str(where))}`" in capsys.readouterr().err
    folder = checkpoint.load(where).path
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert cli.main(["resume", str(where), "--steps", "200", "--lr", "1e-4"]) == 0
    assert name in capsys.readouterr().out
    assert cli.main(["eval", str(where), "--episodes", "1"]) == 0
    assert f"wrote {where}/eval-{saved_steps(where)[-1]}.json" in capsys.readouterr().out
