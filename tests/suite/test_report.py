"""What stands in the tables: both scores apart, the paper's columns beside, and what is missing as missing."""

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.support.made_suite import ATARI, make_suite, write_suite

from casa import atari57
from casa.atari57 import Published
from casa.config.env import EnvConfig
from casa.config.load import to_yaml
from casa.suite import formats
from casa.suite.report import LISTED, write_report
from casa.suite.results import Results, collect, protocol, summaries
from casa.suite.tables import facts, named, sheets

BREAKOUT, PONG = ATARI


@pytest.fixture
def made(tmp_path):
    """Breakout with both seeds, Pong with one of them, which has not been evaluated."""
    suite = make_suite()
    write_suite(tmp_path, suite, {(BREAKOUT, 0): (30.5, 59.3), (BREAKOUT, 1): (1.7, 59.3), (PONG, 0): (14.6, None)})
    return tmp_path, collect(suite, tmp_path)


def sheet(results, name):
    found = next(one for one in sheets(results) if one.name == name)
    titles = [column.title for column in found.columns]
    return [dict(zip(titles, row, strict=True)) for row in found.rows], found


def test_scores_stand_beside_the_papers(made):
    rows, _ = sheet(made[1], "hns")
    breakout, pong = rows
    assert breakout["CASA, paper"] == 624.3 and breakout["LASER HNS"] == atari57.hns("Breakout", 747.9)
    assert breakout["casa, training"] == pytest.approx(16.1) and breakout["casa, training HNS"] == pytest.approx(0.5)
    assert breakout["casa, evaluation"] == 59.3 and breakout["casa, evaluation HNS"] == pytest.approx(2.0)
    assert breakout["casa seeds"] == "2 of 2" and pong["casa seeds"] == "1 of 2"
    assert pong["casa, training"] == 14.6 and pong["casa, evaluation"] is None
    assert sheet(made[1], "saber")[0][0]["world record"] == 864


def test_the_summary_counts_what_it_is_over(made):
    rows = {(row.name, row.scale): row for row in summaries(made[1])}
    training, evaluation = rows["casa, training", "HNS"], rows["casa, evaluation", "HNS"]
    assert (training.games, training.of, training.runs, training.of_runs) == (2, 2, 3, 4)
    assert (evaluation.games, evaluation.runs) == (1, 2)
    assert training.seeds["mean"].estimate == pytest.approx((0.5 + atari57.hns("Pong", 14.6)) / 2)
    assert training.seeds["mean"].low < training.seeds["mean"].estimate < training.seeds["mean"].high
    assert evaluation.seeds["mean"].estimate == pytest.approx(2.0) and evaluation.seeds["above 100%"].estimate == 1


def test_the_papers_rows_come_out_for_all_games():
    games = {f"ALE/{game}-v5": game for game in atari57.GAMES}
    suite = make_suite(envs=tuple(games), seeds=(0,))
    rows = {(row.name, row.scale): row for row in summaries(Results(suite, {}, [], games, 4, {}))}
    casa = rows["CASA, paper, 200M frames", "HNS"]
    assert 100 * casa.seeds["mean"].estimate == pytest.approx(1941.08, abs=0.02)
    assert 100 * rows["LASER, 200M frames", "SABER"].seeds["median"].estimate == pytest.approx(8.08, abs=0.02)
    assert casa.tasks["mean"].low < casa.tasks["mean"].estimate < casa.tasks["mean"].high
    assert rows["casa, training", "HNS"].games == 0 and rows["casa, training", "HNS"].seeds == {}


def test_five_games_predict_the_median_where_all_five_were_played(tmp_path, made):
    games = {f"ALE/{game}-v5": game for game in atari57.SETS["atari5"]}
    suite = make_suite(envs=tuple(games), seeds=(0,))
    write_suite(tmp_path, suite, {(env, 0): (atari57.reference(game).human, None) for env, game in games.items()})
    human = 101 ** sum(atari57.ATARI5.values()) - 1
    (line,) = [line for line in facts(collect(suite, tmp_path)) if "Atari-5" in line]
    assert line.endswith(f": casa, training {human:.0f}%.")
    assert not [line for line in facts(made[1]) if "Atari-5" in line]


def test_what_is_missing_is_named(made):
    told = "\n".join(facts(made[1]))
    assert "Missing, training: casa ALE/Pong-v5 seed 1." in told
    assert "Missing, evaluation: casa ALE/Pong-v5 seeds 0, 1." in told
    assert "VideoPinball 0" in told


def test_the_protocol_of_each_recipe_is_named(made):
    results = made[1]
    own = "each game's own actions, no sticky actions, 0 to 30 no-ops, a lost life is terminal to the learner, "
    assert f"Atari: {own}at most 108,000 frames." in facts(results)
    all_18 = protocol(EnvConfig(sticky=0.25, noop_max=0, max_frames=400))
    assert all_18 == "all 18 actions, sticky actions 0.25, no no-ops, at most 400 frames"
    told = facts(replace(results, protocols={**results.protocols, "r2d2": [all_18]}))
    assert f"Atari of casa: {own}at most 108,000 frames." in told and f"Atari of r2d2: {all_18}." in told


def test_the_protocol_is_that_of_the_runs_not_of_todays_preset(made):
    directory, results = made
    run = results.suite.planned(directory)[0]
    (run.path / "config.yaml").write_text(to_yaml(replace(run.config, env=EnvConfig(run.env, sticky=0.25))))
    told = facts(collect(results.suite, directory))
    assert len([line for line in told if line.startswith("Atari: ")]) == 2  # the other runs have today's
    assert "Atari: all 18 actions, sticky actions 0.25, 0 to 30 no-ops, at most 108,000 frames." in told


PUBLISHED = [
    Published("X", "Breakout", 10_000_000, 50.0, "sticky actions"),
    Published("X", "Breakout", 40_000_000, 194.0, "sticky actions"),
    Published("Y", "Breakout", 40_000_000, 430.0, "no sticky actions"),
    Published("Y", "Breakout", 200_000_000, 600.0, "no sticky actions"),
]


def test_published_scores_at_equal_frames(tmp_path):
    suite = make_suite(steps=10_000_000, seeds=(0,))
    write_suite(tmp_path, suite, {(BREAKOUT, 0): (40.0, 1.0)})
    found = sheets(collect(suite, tmp_path), PUBLISHED)[-1]
    names = [column.title for column in found.columns]
    rows = [dict(zip(names, row, strict=True)) for row in found.rows]
    assert [(row["game"], row["frames"]) for row in rows] == [
        ("Breakout", "10M"), ("Breakout", "40M"), ("Pong", "10M"), ("Pong", "40M")
    ]  # fmt: skip
    assert rows[1]["casa, training"] == pytest.approx(40.0) and rows[3]["casa, training"] is None
    assert (rows[0]["X"], rows[0]["Y"], rows[1]["Y"]) == (50.0, None, 430.0)
    assert "Y: no sticky actions." in found.notes


def test_too_short_runs_have_no_published_scores(made):
    found = sheets(made[1], PUBLISHED)[-1]
    assert found.rows == [] and "these runs have 12,000" in found.notes[0]
    assert "equal-frames" not in [sheet.name for sheet in sheets(made[1])]


def test_all_files_are_written(made):
    directory, _ = made
    out = io.StringIO()
    written = {path.name for path in write_report(directory, Console(file=out, width=200))}
    assert {"suite.md", "suite.html", "hns.tex", "hns.csv", "saber.tex", "summary.csv"} <= written
    pytest.importorskip("matplotlib")
    assert {"curves.png", "profiles.svg"} <= written
    text = (directory / "report" / "suite.md").read_text()
    assert "| Pong |" in text and "| missing |" in text and "random scores of the CASA paper" in text
    tex = (directory / "report" / "hns.tex").read_text()
    rows = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 3 and len({row.count(" & ") for row in rows}) == 1 and r"\%" in rows[1]
    with open(directory / "report" / "hns.csv") as file:
        table = {row["game"]: row for row in csv.DictReader(file)}
    assert table["Pong"]["casa, evaluation"] == "" and float(table["Breakout"]["casa, evaluation"]) == 59.3
    assert "Missing, evaluation" in out.getvalue()
    page = (directory / "report" / "suite.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_other_environments_have_returns_and_no_summary(tmp_path):
    suite = make_suite(name="environments", envs=("CartPole-v1",), settings={})
    write_suite(tmp_path, suite, {("CartPole-v1", 0): (100.0, 200.0)})
    results = collect(suite, tmp_path)
    assert [one.name for one in sheets(results)] == ["returns"]
    assert sheets(results)[0].rows == [["CartPole-v1", 100.0, 200.0, "1 of 2"]]
    assert "CartPole-v1 | 100 | 200 | 1 of 2 |" in formats.markdown(sheets(results), "title", facts(results))


def test_latex_needs_no_care_with_names():
    from casa.suite.formats import _escaped

    assert _escaped("50% of a_b & $c") == r"50\% of a\_b \& \$c"


def test_a_long_list_of_missing_runs_is_cut_on_a_terminal():
    runs = [f"casa env-{i} seed 0" for i in range(57)]
    assert f"Missing, training: {named(runs, LISTED)}." == (
        f"Missing, training: {'; '.join(runs[:6])}; and 51 more, all in suite.md."
    )
    assert f"Missing, training: {named(runs[:6], LISTED)}." == f"Missing, training: {'; '.join(runs[:6])}."
