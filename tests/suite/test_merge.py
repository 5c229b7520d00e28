"""Directories of two machines become one, or nothing changes."""

import io

import pytest
from rich.console import Console
from tests.support.made_suite import ATARI, make_suite, write_run, write_suite

from casa.errors import UserError
from casa.suite import spec
from casa.suite.merge import merge
from casa.suite.results import collect

BREAKOUT, PONG = ATARI


def quiet():
    return Console(file=io.StringIO())


@pytest.fixture
def two(tmp_path):
    write_suite(tmp_path / "a", make_suite(seeds=(0,)), {(BREAKOUT, 0): (2.0, 3.0), (PONG, 0): (-20.0, -21.0)})
    write_suite(tmp_path / "b", make_suite(seeds=(1,)), {(BREAKOUT, 1): (4.0, 5.0)})
    return tmp_path / "a", tmp_path / "b"


def files(directory):
    return {str(f.relative_to(directory)): f.read_bytes() for f in sorted(directory.rglob("*")) if f.is_file()}


def test_other_seeds_are_added_and_gaps_stay_gaps(two):
    a, b = two
    before = files(b)
    merge(a, [b], quiet())
    suite = spec.load(a)
    results = collect(suite, a)
    assert suite.seeds == (0, 1) and files(b) == before
    assert results.of("casa", BREAKOUT, "training") == [2.0, 4.0]
    assert results.of("casa", BREAKOUT, "evaluation") == [3.0, 5.0]
    assert results.missing("training") == ["casa ALE/Pong-v5 seed 1"]
    after = files(a)
    merge(a, [b], quiet())  # once more changes nothing
    assert files(a) == after


def test_into_a_new_directory(two, tmp_path):
    merge(tmp_path / "c", two, quiet())
    assert spec.load(tmp_path / "c").seeds == (0, 1)
    assert len(list((tmp_path / "c").glob("runs/*/*/seed-*"))) == 3


def test_of_two_copies_of_a_run_the_longer_one_is_kept(two, tmp_path):
    a, b = two
    run = make_suite(seeds=(1,)).planned(b)[0]
    log = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    merge(a, [b], quiet())
    copy = a / run.path.relative_to(b)
    (copy / "metrics.jsonl").write_text("".join(log[:1]))
    merge(a, [b], quiet())
    assert (copy / "metrics.jsonl").read_text() == "".join(log)
    (run.path / "metrics.jsonl").write_text("".join(log[:1]))
    merge(a, [b], quiet())
    assert (copy / "metrics.jsonl").read_text() == "".join(log)


@pytest.mark.parametrize("case", ["steps", "other run", "itself", "no suite", "none"])
def test_a_conflict_is_one_sentence_and_changes_nothing(two, tmp_path, case):
    a, b = two
    others, words = [b], ""
    if case == "steps":
        write_suite(b, make_suite(seeds=(1,), steps=600), {})
        words = "steps 3000, but"
    elif case == "other run":
        write_run(make_suite(seeds=(0,)).planned(b)[0], score=9.0)
        words = "different runs of the same recipe, environment and seed"
    elif case == "itself":
        others, words = [a], "is the directory to merge into"
    elif case == "no suite":
        others, words = [b, tmp_path / "nowhere"], "holds no suite"
    else:
        others, words = [], "at least one other directory"
    before = files(a)
    with pytest.raises(UserError) as error:
        merge(a, others, quiet())
    assert words in str(error.value) and "\n" not in str(error.value)
    (a / ".lock").unlink(missing_ok=True)
    before.pop(".lock", None)
    assert files(a) == before
