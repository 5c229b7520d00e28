"""The door for Python: train, callbacks, what an agent reads, the environment it was trained on, ONNX."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import casa
from casa import tables
from casa.actions import ActionSpec
from casa.errors import UserError

SMALL = {
    "preset": "laptop",
    "quiet": True,
    "mode": "sync",
    "net__hidden": 32,
    "env__num_envs": 8,
    "env__vectorization": "sync",
    "data__rollout": 0,
    "log__tensorboard": "no",
    "log__every_steps": 200,
}


SPACES = {
    "bytes": Box(0, 255, (6,), np.uint8),
    "integers": Box(-50, 50, (2, 3), np.int16),
    "number": Discrete(3, start=7),
    "grid": Box(0, 10, (4, 5, 3), np.uint8),
    "picture": Box(0, 255, (24, 20, 3), np.uint8),
    "floats": Box(-np.inf, np.inf, (3,), np.float64),
}


class Show(gym.Env):
    """The reward is 1 for naming what is shown; how it is shown depends on `kind`. Episodes of 5 steps."""

    def __init__(self, kind="bytes"):
        self.kind, self.observation_space, self.action_space = kind, SPACES[kind], Discrete(3, start=-1)

    def observe(self):
        self.shown = int(self.np_random.integers(3))
        if self.kind == "number":
            return 7 + self.shown
        obs = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        if self.kind in ("grid", "picture"):
            obs[..., self.shown] = self.observation_space.high.max()
        else:
            obs.reshape(-1)[self.shown] = 50
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(np.int64(action)), action
        reward = float(action == self.shown - 1)
        self.left -= 1
        return self.observe(), reward, self.left == 0, False, {}


def play(agent, env, episodes=8):
    """Mean return of greedy play through Gymnasium's API alone, as a user writes it."""
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        state, start, over = None, True, False
        while not over:
            action, state = agent.predict(obs, state, start, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, start, over = total + reward, False, terminated or truncated
    return total / episodes


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPACES)
def test_an_agent_reads_what_its_environment_gives(kind, tmp_path):
    """On raw observations it plays as well as in evaluation: nothing to scale, encode or transpose by hand."""
    stack = {"env__frame_stack": 2} if kind == "picture" else {}
    preset = {"preset": "laptop" if kind in ("grid", "picture") else "classic"}  # that of images is slow on vectors
    run = casa.train(
        "ppo-casa",
        Show,
        6000,
        run_dir=tmp_path / "run",
        env__kwargs=f"{{kind: {kind}}}",
        agent__reward="raw",
        agent__discount=0.5,
        **{**SMALL, **stack, **preset},
    )
    agent = casa.load(run, trust=True, seed=0)
    assert run.evaluate(8, ("greedy",))["modes"]["greedy"]["mean"] > 4.5
    env = agent.make_env()
    assert play(agent, env) > 4.5
    if kind == "picture":
        assert env.observation_space.shape == (6, 24, 20)
        with pytest.raises(ValueError, match=r"reads one observation \(6, 24, 20\) .* as its make_env\(\) gives them"):
            agent.predict(Show(kind).reset(seed=0)[0])
    else:
        assert play(agent, Show(kind)) > 4.5  # the user's own copy of the environment
        batch = np.stack([Show(kind).reset(seed=i)[0] for i in range(4)])
        each = [agent.predict(obs, deterministic=True)[0] for obs in batch]
        np.testing.assert_array_equal(agent.predict(batch, deterministic=True)[0], each)
    if kind in ("bytes", "integers", "grid"):  # what was taken without a word before
        with pytest.raises(ValueError, match=f"gives {env.observation_space.dtype}; pass it unscaled"):
            agent.predict(np.asarray(Show(kind).reset(seed=0)[0]) / 255)
    if kind == "number":
        with pytest.raises(ValueError, match="obs must be from 7 to 9"):
            agent.predict(3)


def test_atari_is_preprocessed_as_in_training(tmp_path):
    settings = {**SMALL, "env__num_envs": 2, "data__batch": 2, "data__seq_len": 4, "env__frame_size": 36}
    run = casa.train("ppo-casa", "Breakout", 16, run_dir=tmp_path / "run", **settings)
    agent = run.load(seed=0)
    env = agent.make_env()
    obs, _ = env.reset(seed=3)
    assert (obs.shape, obs.dtype) == ((4, 36, 36), np.uint8)
    assert env.observation_space.contains(obs)
    assert not obs[:3].any() and obs[3].any()  # the stack of an episode's first frame
    vec = casa.make_env(agent.config.env, 1)
    np.testing.assert_array_equal(obs, vec.reset(3)[0])
    for _ in range(5):
        action, _ = agent.predict(obs)
        obs, *_ = env.step(action)
        vec.send(np.array([action]))
        np.testing.assert_array_equal(obs, vec.recv().obs[0])
    env.close(), vec.close()


def test_after_an_end_reset_must_follow(tmp_path):
    env = casa.load(quick(tmp_path)).make_env()
    assert isinstance(env.unwrapped, gym.Env) and env.spec.id == "CartPole-v1"


def quick(tmp_path, **settings):
    return casa.train("casa", "CartPole-v1", 400, run_dir=tmp_path / "run", **{**SMALL, **settings})


class Recorder(casa.Callback):
    def __init__(self, stop_at=None):
        self.seen, self.stop_at = [], stop_at

    def on_start(self, training):
        self.seen.append(("start", training.steps))

    def on_update(self, training, scalars):
        self.seen.append(("update", scalars["loss"]))

    def on_episode(self, training, episode):
        self.seen.append(("episode", episode.score))

    def on_progress(self, training):
        if self.stop_at is not None and training.steps >= self.stop_at:
            training.stop("enough")

    def on_report(self, training, row):
        self.seen.append(("report", row["step"]))

    def on_checkpoint(self, training, path):
        self.seen.append(("checkpoint", path.name))

    def on_end(self, training):
        self.seen.append(("end", training.steps))

    def of(self, kind):
        return [value for name, value in self.seen if name == kind]


def test_callbacks_see_everything_that_is_written(tmp_path):
    recorder = Recorder()
    run = quick(tmp_path, callbacks=[recorder])
    assert recorder.of("start") == [0]
    assert recorder.of("report") == [row["step"] for row in run.metrics]
    assert recorder.of("episode") == [episode["score"] for episode in run.episodes]
    assert len(recorder.of("update")) == run.row["learner_steps"] > 0
    assert recorder.of("checkpoint") == ["step-000000000000", f"step-{run.row['step']:012d}"]
    assert recorder.seen[-1] == ("end", run.row["step"])
    assert repr(run).startswith(f"<casa.Run {tmp_path / 'run'}: casa on CartPole-v1, {run.row['step']} steps, return ")


def test_a_callback_ends_the_run_with_a_checkpoint_that_can_go_on(tmp_path):
    run = quick(tmp_path, callbacks=[Recorder(stop_at=200)])
    stopped = run.row["step"]
    assert 200 <= stopped < 300
    assert casa.load(run).step == stopped
    run.resume(quiet=True)
    assert run.row["step"] >= 400


def test_stop_at_return(tmp_path):
    run = quick(tmp_path, callbacks=[casa.StopAtReturn(5.0, episodes=3)], log__every_steps=50)
    assert run.row["step"] < 400 and run.row["return"] >= 5


def test_a_registered_callback_runs_by_name(tmp_path):
    made = []

    @casa.register.callback("note-it")
    class NoteIt(casa.Callback):
        def on_end(self, training):
            made.append(training.steps)

    try:
        run = quick(tmp_path, callbacks=["note-it"])
        assert made == [run.row["step"]]
        assert run.config.callbacks == ("note-it",)
    finally:
        tables.CALLBACKS.remove_from(__name__)


def test_settings_are_checked_as_on_the_command_line(tmp_path):
    with pytest.raises(UserError, match=r"field 'learner.lrr' is unknown; did you mean 'learner.lr'"):
        casa.train("casa", "CartPole-v1", 400, learner__lrr=1)
    with pytest.raises(UserError, match=r"env 'test_settings.*' cannot be found by its name"):
        casa.train("casa", lambda: None, 400)
    assert not (tmp_path / "runs").exists()


def test_training_leaves_the_process_as_it_was(tmp_path):
    before = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    quick(tmp_path)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.rand(1), expected)


def test_a_repr_says_what_an_agent_is(tmp_path):
    text = repr(quick(tmp_path, net__lstm=4).load())
    assert text.startswith("<casa.Agent casa on CartPole-v1 after 4") and "LSTM 4" in text and "2 actions" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "recipe", "settings"),
    [
        ("CartPole-v1", "casa", {"net__lstm": 8}),
        ("CartPole-v1", "r2d2", {"data__replay_frames": 1000, "data__min_fill": 100}),
        ("tests.run.test_door:Show", "ppo", {"env__kwargs": "{kind: grid}"}),
        ("tests.run.test_door:Show", "casa", {"env__kwargs": "{kind: integers}"}),
        ("tests.run.test_door:Show", "casa", {"env__kwargs": "{kind: number}"}),
        ("Breakout", "casa", {"env__frame_size": 36, "env__num_envs": 2, "data__batch": 2, "data__seq_len": 4}),
    ],
)
def test_onnx_computes_what_torch_computes(env, recipe, settings, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    run = casa.train(recipe, env, 64, run_dir=tmp_path / "run", **{**SMALL, **settings})
    agent = run.load()
    agent.network.float()
    session = runtime.InferenceSession(str(agent.to_onnx(tmp_path / "agent.onnx")))
    rng = np.random.default_rng(0)
    spec = agent.spec.observation
    shape, dtype = (agent.spec.obs_shape, np.uint8) if spec is None else (spec.shape, spec.dtype)
    if spec is not None and spec.space == "discrete":
        obs = rng.integers(7, 10, 5).astype(dtype)
    elif np.dtype(dtype).kind in "iu":
        obs = rng.integers(0, 11, (5, *shape)).astype(dtype)
    else:
        obs = rng.normal(size=(5, *shape)).astype(dtype)
    feed = {"obs": obs}
    if agent.recurrent:
        feed["state"] = rng.normal(size=(5, agent.network.state_size)).astype(np.float32)
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))
    rows, _ = agent._observations(obs)
    state = torch.as_tensor(feed["state"]) if agent.recurrent else agent.network.initial_state(5)
    actions, after, out = agent.act(torch.as_tensor(rows), state, deterministic=True)
    np.testing.assert_array_equal(found["action"], actions.numpy())
    for name, tensor in (("log_pi", out.log_pi), ("value", out.v), ("q", out.q)):
        if tensor is not None:
            np.testing.assert_allclose(found[name], tensor.numpy(), atol=2e-5)
    if agent.recurrent:
        np.testing.assert_allclose(found["next_state"], after.numpy(), atol=1e-5)


@pytest.mark.parametrize("wrong", [Recorder, lambda *args: None, 3])
def test_what_is_no_callback_is_refused(wrong, tmp_path):
    with pytest.raises(UserError, match=r"callbacks must be casa.Callback objects or names"):
        quick(tmp_path, callbacks=[wrong])


def test_the_first_event_is_the_start(tmp_path):
    recorder = Recorder()
    quick(tmp_path, callbacks=[recorder])
    assert [kind for kind, _ in recorder.seen[:2]] == ["start", "checkpoint"]


def test_a_callback_that_raises_loses_nothing(tmp_path):
    class Breaks(casa.Callback):
        def on_report(self, training, row):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        quick(tmp_path, callbacks=[Breaks()])
    assert casa.load(tmp_path / "run").step >= 200


def test_a_plugins_environment_gets_the_preset_that_fits(tmp_path, monkeypatch):
    from casa.config.load import load_config
    from casa.envs.suggest import suggest_preset

    (tmp_path / "my_plugin_env.py").write_text(
        "import gymnasium as gym\ngym.register('MyCart-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_config(["--plugin", "my_plugin_env", "--env", "MyCart-v0"], suggest=suggest_preset)
    assert (config.preset, config.plugins) == ("classic", ("my_plugin_env",))
    needs = ["--env", "tests.run.test_door:Show", "--env.kwargs", "{kind: floats}"]
    assert load_config(needs, suggest=suggest_preset).preset == "classic"
    assert load_config([*needs, "--preset", "paper"], suggest=suggest_preset).preset == "paper"


def test_integers_do_not_wrap(tmp_path):
    agent = casa.train(
        "ppo-casa", Show, 64, run_dir=tmp_path / "run", env__kwargs="{kind: bytes}", **SMALL
    ).load()
    for wrong in (-1, 300):
        with pytest.raises(ValueError, match="obs must be from 0 to 255"):
            agent.predict(np.full(6, wrong))


class TestWarnings:
    def training(self, actions, **agent):
        from types import SimpleNamespace

        said = []
        fields = {"reward": "clip01", "behaviour": "sample", "head": "casa", "tau_decay": 1.0, **agent}
        config = SimpleNamespace(agent=SimpleNamespace(**fields))
        system = SimpleNamespace(spec=SimpleNamespace(actions=actions))
        return SimpleNamespace(config=config, note=said.append, system=system), said

    def report(self, *rows, actions=ActionSpec.discrete(4), **agent):  # noqa: B008
        from casa.run.callbacks import Warnings

        training, said = self.training(actions, **agent)
        warnings = Warnings()
        for row in rows:
            warnings.on_report(training, {"return": -500.0, "shaped_reward": 0.1, "entropy": 1.0, **row})
        return said

    def test_rewards_that_are_shaped_away_are_named_once(self):
        (text,) = self.report({"shaped_reward": 0.0}, {"shaped_reward": 0.0})
        assert "every reward is 0 after agent.reward 'clip01'" in text and "--agent.reward raw" in text
        assert self.report({"shaped_reward": 0.0, "return": 0.0}) == []

    @pytest.mark.parametrize("reward", ["raw", "clip", "log"])
    def test_a_first_batch_without_a_reward_loses_none(self, reward):
        assert self.report({"shaped_reward": 0.0}, reward=reward) == []

    def test_a_collapse_is_named_after_three_reports(self):
        low = {"entropy": 1e-5}
        assert self.report(low, low, {}, low) == []
        (text,) = self.report(low, low, low, low)
        assert "the policy has collapsed" in text and "a larger agent.tau or a smaller" in text
        (text,) = self.report(low, low, low, tau_decay=0.1)
        assert "a larger agent.tau or agent.tau_decay or" in text
        box = ActionSpec.box([-1, -1], [1, 1])  # the entropy of a density may be negative
        assert self.report(*[{"entropy": -8.0}] * 3, actions=box) == []
        assert len(self.report(*[{"entropy": -11.0}] * 3, actions=box)) == 1

    def test_on_a_real_run(self, tmp_path, capsys):
        settings = {**SMALL, "quiet": False, "agent__reward": "clip01", "agent__reward_scale": "none"}
        casa.train("ppo", "Acrobot-v1", 6000, run_dir=tmp_path / "run", **settings)
        assert "warning: every reward is 0" in " ".join(capsys.readouterr().out.split())
