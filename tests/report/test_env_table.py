import io

import pytest
from rich.console import Console

from casa.envs.registry import EnvList, Listed
from casa.errors import UserError
from casa.report.envs import print_envs

ENVS = EnvList(
    ["Boxing", "Breakout"],
    ["Tetris"],
    {
        "classic": [Listed("CartPole-v1", True, "2 actions, vector observations")],
        "box": [
            Listed("Ant-v5", None, "run `pip install x[mujoco]`"),
            Listed("Pusher-v5", None, "run `pip install x[mujoco]`"),
        ],
        "other": [Listed("Pendulum-v1", False, "continuous actions")],
    },
)


def printed(pattern: str = "") -> str:
    console = Console(file=io.StringIO(), width=120)
    print_envs(console, ENVS, pattern)
    return console.file.getvalue()


def test_everything_is_listed_and_a_shared_reason_is_said_once() -> None:
    text = printed()
    for name in ("Boxing", "Breakout", "Tetris", "CartPole-v1", "Pendulum-v1"):
        assert name in text
    assert "2 actions, vector observations" in text
    assert text.count("not usable: run `pip install x[mujoco]`") == 1
    assert "Ant-v5, Pusher-v5" in text


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("break", {"Breakout"}),
        ("ALE/Breakout-v5", {"Breakout"}),
        ("cart*v1", {"CartPole-v1"}),
        ("p*-v", {"CartPole-v1", "Pusher-v5", "Pendulum-v1"}),
    ],
)
def test_a_pattern_is_part_of_a_name_in_any_case(pattern: str, names: set[str]) -> None:
    text = printed(pattern)
    everything = {"Boxing", "Breakout", "Tetris", "CartPole-v1", "Ant-v5", "Pusher-v5", "Pendulum-v1"}
    assert {name for name in everything if name in text} == names


def test_no_match_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="no environment matches 'Breakot'; did you mean 'Breakout'"):
        printed("Breakot")
    with pytest.raises(UserError, match=r"no environment matches 'zzzz'$"):
        printed("zzzz")
