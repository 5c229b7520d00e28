from dataclasses import dataclass, field
from typing import Literal

import pytest
from tyro.conf import Positional

from casa.config.arguments import flag, integer, leaves, parse, parse_known
from casa.errors import UserError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    kind: Literal["first", "second"] = "first"
    pair: tuple[float, float] = (1.0, 2.0)


@dataclass(frozen=True)
class Outer:
    name: Positional[str] = ""
    clip_norm: int = 3
    inner: Inner = field(default_factory=Inner)


def test_integers_as_people_write_them() -> None:
    assert [integer(text) for text in ("12", "1_000_000", "1e6", "-3", "2.0")] == [12, 10**6, 10**6, -3, 2]
    assert integer(str(2**63 + 1)) == 2**63 + 1  # no detour through float
    for text in ("1.5", "abc", ""):
        with pytest.raises(ValueError):
            integer(text)


def test_leaves_and_flags() -> None:
    assert list(leaves(Outer)) == ["name", "clip_norm", "inner.rate", "inner.kind", "inner.pair"]
    assert leaves(Outer)["inner.rate"] is float
    assert flag("inner.clip_norm") == "--inner.clip-norm"


def test_values_come_from_arguments_over_the_default() -> None:
    default = Outer(name="x", inner=Inner(rate=7.0))
    args = ["--inner.kind", "second", "--clip-norm=1e3", "--inner.pair", "3", "4"]
    assert parse(Outer, args, prog="p", default=default) == Outer("x", 1000, Inner(7.0, "second", (3.0, 4.0)))


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--inner.ratee", "1"], "unknown flag --inner.ratee; did you mean --inner.rate?"),
        (["--clip-nrm=3"], "unknown flag --clip-nrm; did you mean --clip-norm?"),
        (["--zzzzzzzz"], "unknown flag --zzzzzzzz"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--inner.rate", "fast"], "--inner.rate: could not convert string to float: 'fast'"),
        (["--clip-norm", "1.5"], "--clip-norm: '1.5' is not a whole number"),
        (["--inner.kind", "third"], "invalid choice 'third' for argument '--inner.kind'"),
        (["--inner.pair", "1"], "Missing value for argument '--inner.pair'"),
    ],
)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_rejection_is_one_sentence(
    args: list[str],
    sentence: str,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)  # tyro draws its box to the terminal's width
    with pytest.raises(UserError) as caught:
        parse(Outer, args, prog="p")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(part in str(caught.value) for part in ("│", "─", "help"))
    assert capsys.readouterr().err == ""


def test_unknown_arguments_are_handed_back_unchanged() -> None:
    rest = ["--run_dir", "runs/a_b", "--x=1_0", "-h"]
    assert parse_known(Inner, ["--rate", "5", *rest], prog="p", add_help=False) == (Inner(rate=5.0), rest)


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(Outer, ["--help"], prog="casa p")
    assert left.value.code == 0
    assert "usage: casa p" in capsys.readouterr().out
