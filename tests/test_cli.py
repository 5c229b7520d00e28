import os
import subprocess
import sys
import time

import pytest

from casa import __version__, cli
from casa.cli import COMMANDS, Command, main
from casa.config.recipes import RECIPES
from casa.errors import UserError


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "casa", *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_help_names_every_command_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)


def test_without_a_command_the_help_is_shown_and_the_status_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: casa" in capsys.readouterr().out


def test_help_is_quick_and_needs_no_torch() -> None:
    code = "import sys; from casa.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    start = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
    assert time.perf_counter() - start < 2  # 0.3 s when the machine is idle


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: casa {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"casa {__version__}\n"


def test_python_dash_m_gives_the_exit_status() -> None:
    assert run("--version").stdout == f"casa {__version__}\n"
    wrong = run("recipies")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "casa: command 'recipies' is unknown; did you mean 'recipes'?\n"


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in RECIPES)
    assert main(["recipes", "casa", "--preset", "laptop"]) == 0
    assert "laptop preset" in capsys.readouterr().out


def test_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "breakout"]) == 0
    assert "Breakout" in capsys.readouterr().out
    assert main(["envs", "cartpole-v1"]) == 0
    assert "2 actions, vector observations" in capsys.readouterr().out


def test_verify_hands_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def command(json_path: str | None, seeds: int) -> int:
        calls.append((json_path, seeds))
        return 1

    monkeypatch.setattr("casa.theory.verify.verify_command", command)
    assert main(["verify"]) == 1
    assert main(["verify", "--seeds", "2", "--json", "out.json"]) == 1
    assert calls == [(None, 5), ("out.json", 2)]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["envs", "breakot"], "casa: no environment matches 'breakot'; did you mean 'Breakout'?\n"),
        (["verify", "--seeds", "0"], "casa: seeds must be at least 1, got 0\n"),
        (["recipes", "cassa"], "casa: recipe 'cassa' is unknown; did you mean 'casa'?\n"),
        (["recipes", "--presett", "x"], "casa: unknown flag --presett; did you mean --preset?\n"),
        (["recipes", "casa", "ppo"], "casa: unexpected argument 'ppo'\n"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr() == ("", sentence)


def raising(error: BaseException) -> Command:
    def command(argv: list[str]) -> int:
        raise error

    return Command("raises", command)


def test_errors_become_exit_statuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "user", raising(UserError("steps must be >= 1, got 0")))
    monkeypatch.setitem(cli.COMMANDS, "interrupt", raising(KeyboardInterrupt()))
    monkeypatch.setitem(cli.COMMANDS, "status", Command("returns 3", lambda argv: 3))
    monkeypatch.setitem(cli.COMMANDS, "bug", raising(ZeroDivisionError()))
    assert main(["user"]) == 2
    assert capsys.readouterr().err == "casa: steps must be >= 1, got 0\n"
    assert main(["interrupt"]) == 130
    assert capsys.readouterr() == ("", "")
    assert main(["status"]) == 3
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        main(["bug"])


@pytest.mark.parametrize("command", ["recipes", "--help"])
def test_a_reader_that_leaves_gets_no_traceback(command: str) -> None:
    # The read end is closed before anything is written, so the first write already fails.
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "casa", command]
    process = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (process.returncode, process.stderr) == (1, b"")


def test_a_terminal_without_unicode_is_enough() -> None:
    table = run("recipes", PYTHONIOENCODING="ascii")
    assert (table.returncode, table.stderr) == (0, "")
    assert "? = softmax(logit)" in table.stdout
    wrong = run("recipes", "--preset", "x", PYTHONIOENCODING="ascii")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("casa: invalid choice 'x' for argument '--preset'. Expected one of")
    assert wrong.stderr.count("\n") == 1
