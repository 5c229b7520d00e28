"""Environments that go wrong in the middle of a run: one sentence that names them, and nothing learned is lost."""

import json
import math
import time

import pytest
import torch
from tests.support.runs import again, quiet, rows, run, run_config, said, saved_steps
from tests.support.small import small_config

from casa import cli
from casa.errors import UserError
from casa.run import checkpoint
from casa.run.agent import load
from casa.run.training import resume, train

FAULTS = {
    "obs nan": r"environment 0, step 30: observation is nan at index \(1,\) \(and in 7 other environments\)$",
    "reward nan": r"environment 0, step 30: reward is nan \(and in 7 other environments\)$",
    "raises": r"environment 0, step 30: step raised ValueError: the bridge is out \(tiny_envs.py, line \d+\)$",
    "shape": r"environment 0, step 30: observation has shape \(2,\), its space says \(3,\)$",
    "dtype": r"environment 0, step 30: observation has dtype <U32, its space says float32$",
}


def faulty(how, at=30, **changes):
    return {"env": "tests.support.tiny_envs:Faulty", "env.kwargs": json.dumps({"how": how, "at": at}), **changes}


def whole(path, step):
    """The newest checkpoint is that of `step`, and all its numbers are."""
    saved = checkpoint.load(path)
    assert saved.step == step
    assert all(torch.isfinite(x).all() for x in saved.state["model"].values())
    return saved


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_ends_the_run_with_one_sentence_and_a_checkpoint(how, mode, tmp_path):
    config = run_config("casa", tmp_path / "run", mode=mode, **faulty(how))
    console = quiet()
    # In async a group of environments has four of the eight.
    text = FAULTS[how].replace("7 other", "3 other" if mode == "async" else "7 other")
    with pytest.raises(UserError, match=text):
        train(config, console)
    assert f"continue with: casa resume {tmp_path / 'run'} --trust" in said(console)
    saved = whole(tmp_path / "run", 29 * 8)
    if mode == "sync":  # in async the learner may be behind when the fault comes
        assert saved.meta["system"]["learner_steps"] > 5
    # The environment is mended: the run goes on. (Steps are counted from the reset, so the fault comes later.)
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace(how, "mended"))
    resume(tmp_path / "run", console, trust=True)
    assert rows(tmp_path / "run")[-1]["step"] == 800
    assert f"resumed at {29 * 8} steps" in said(console)


def test_the_command_says_it_in_one_line_and_leaves_with_2(tmp_path, capsys):
    settings = {**faulty("reward nan"), "run-dir": str(tmp_path / "run"), "recipe": "casa", "env.num-envs": 8}
    small = {"net.hidden": 8, "data.seq-len": 5, "data.batch": 4, "log.tensorboard": "no", "env.vectorization": "sync"}
    flags = {**settings, **small, "preset": "laptop", "mode": "sync"}
    argv = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert cli.main(["train", *argv]) == 2
    seen = capsys.readouterr()
    assert seen.err == "casa: environment 0, step 30: reward is nan (and in 7 other environments)\n"
    assert f"saved at 232 steps; continue with: casa resume {tmp_path / 'run'}" in " ".join(seen.out.split())


def test_an_environment_that_cannot_be_reset_at_a_checkpoint(tmp_path):
    """The episodes were cut, the checkpoint written, and no new ones could begin: nothing false is added."""
    config = run_config("casa", tmp_path / "run", **{**faulty("reset raises", at=10**9), "checkpoint.exact": True})
    with pytest.raises(UserError, match=r"environment 0, step 0: reset raised ValueError: no way back"):
        train(config, quiet())
    saved = whole(tmp_path / "run", 400)
    ring = saved.state["replay"]["ring"]
    assert ring["written"].tolist() == [400 // 8 + 1] * 8  # one slot a step, and the final observation of the cut
    assert saved.meta["system"]["boundaries"] == 1
    capacity = ring["truncated"].shape[0]
    assert ring["truncated"][(400 // 8 - 1) % capacity].all()
    assert not ring["truncated"][(400 // 8) % capacity].any()


def test_rewards_too_large_to_learn_from(tmp_path):
    """Ten learner steps in a row are skipped, then the run stops; the last good checkpoint and the reasons are kept."""
    config = run_config("ppo", tmp_path / "run", **faulty("huge reward", **{"checkpoint.every_steps": 80}))
    with pytest.raises(UserError, match=r"not finite in 10 learner steps in a row.*learner.lr.*diverged\.json"):
        train(config, quiet())
    dump = json.loads((tmp_path / "run" / "diverged.json").read_text())
    assert "to 3e+38; log mu" in dump["error"]
    assert dump["step"] > 80
    whole(tmp_path / "run", 0)  # the checkpoint at 80 was due while steps were skipped


@pytest.mark.parametrize(
    ("every", "text"), [(800, "not finite in 10 learner steps"), (8, "the weights are broken: .* has grown to")]
)
def test_broken_weights_are_never_saved(every, text, tmp_path):
    """Neither while steps are skipped nor before the first one is."""
    path = tmp_path / "run"
    changes = {"learner.lr": 1e7, "learner.warmup": 0, "checkpoint.every_steps": every, "checkpoint.keep": 1}
    changes |= {"data.batch": 8, "data.reuse": 1}  # one learner step at a time
    with pytest.raises(UserError, match=rf"{text}.*the last good checkpoint, of step \d+, is kept"):
        train(run_config("casa", path, **changes), quiet())
    assert saved_steps(path) == [0] if every == 800 else saved_steps(path)[-1] < 80
    # One that was written by an earlier version: it is scored, but not without a word.
    saved = checkpoint.load(path)
    state = {**saved.state, "model": {name: 1e10 * x for name, x in saved.state["model"].items()}}
    checkpoint.save(path, 400, state, saved.meta)
    with pytest.warns(RuntimeWarning, match=r"weights in .*400 are broken: backbone\."):
        load(path)


def test_the_newest_good_checkpoint_outlives_the_count(tmp_path):
    """With one to keep, the checkpoint before it stays: learning is known to have gone on from that."""
    path = run("casa", tmp_path / "run", **{"checkpoint.keep": 1, "checkpoint.every_steps": 200})
    steps = saved_steps(path)
    good, latest, best = (checkpoint.load(path, which) for which in ("good", "latest", "best"))
    assert steps == sorted({good.step, latest.step, best.step}) and good.step < latest.step
    again(path, steps=1000, lr=1e-4)
    assert checkpoint.load(path, "good").step >= latest.step


class TestMemory:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"net.hidden": 1_000_000}, r"the network with its batch needs [\d.]+ GiB on cpu, .* lower net.hidden"),
            ({"net.hidden": 10**11}, r"net.hidden 100000000000 and net.lstm 0 are too large"),
            ({"data.batch": 10**9}, r"(batch|ring) needs [\d.]+ GiB on cpu"),
            ({"steps": 10**399}, r"steps must be at most 10\^18 - 1, got a number of 400 digits"),
        ],
    )
    def test_what_does_not_fit_is_refused_before_it_is_made(self, changes, sentence, tmp_path):
        with pytest.raises(UserError, match=sentence):
            train(run_config("casa", tmp_path / "run", **changes), quiet())

    def test_a_failed_allocation_is_one_sentence(self, tmp_path, monkeypatch):
        def fail(*shape):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")

        monkeypatch.setattr("casa.engines.build.Ring", fail)
        with pytest.raises(UserError, match=r"out of memory: RuntimeError: .*lower env\.num_envs"):
            train(run_config("casa", tmp_path / "run"), quiet())

    @pytest.mark.parametrize("kind", ["observation", "actions"])
    def test_large_discrete_spaces(self, kind, tmp_path):
        """Observations are one-hot vectors, not rows of an identity matrix; actions beyond 32,767 do not wrap."""
        env = {"env": "tests.support.tiny_envs:Wide", "env.kwargs": f"{{{kind}: 100000}}"}
        path = run("casa", tmp_path / "run", steps=200, **env, **{"checkpoint.replay": "yes"})
        actions = checkpoint.load(path).state["replay"]["ring"]["actions"]
        assert rows(path)[-1]["skipped"] == 0 and actions.min() >= 0
        assert (int(actions.max()) > 2**15) == (kind == "actions")

    def test_a_ring_that_does_not_fit_is_refused_before_it_is_made(self, tmp_path, monkeypatch):
        config = run_config("r2d2", tmp_path / "run", **{"data.replay_frames": 10**13})
        monkeypatch.setattr("casa.engines.build.Ring", lambda *_: pytest.fail("the ring was allocated"))
        began = time.perf_counter()
        sentence = r"the trajectory ring needs [\d.]+ GiB on cpu, but only [\d.]+ GiB are free; lower data"
        with pytest.raises(UserError, match=sentence):
            train(config, quiet())
        assert time.perf_counter() - began < 5

    def test_the_directory_can_then_be_used(self, tmp_path):
        for frames in (10**13, 2000):
            config = run_config("r2d2", tmp_path / "run", steps=200, **{"data.replay_frames": frames})
            if frames > 2000:
                with pytest.raises(UserError):
                    train(config, quiet())
            else:
                console = quiet()
                train(config, console)
        assert "the trajectory ring: " in said(console) and " free on cpu" in said(console)

    def test_the_estimate_is_what_the_ring_takes(self):
        from tests.support.small import probe_system

        ring = probe_system("r2d2", steps=96, **{"net.lstm": 8}).ring
        taken = sum(x.nbytes for x in vars(ring).values() if isinstance(x, torch.Tensor))
        assert math.isclose(ring.shape.bytes, taken, rel_tol=0.01)
        assert small_config("r2d2").data.replay_frames == 8000
