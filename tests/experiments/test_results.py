"""Numbers, table and figures of a study."""

import csv
import math

import numpy as np
import pytest
from rich.console import Console

from casa.errors import UserError
from casa.experiments import figures
from casa.experiments.collect import NUMBERS, Curve, in_order, read_csv, write_csv
from casa.experiments.command import Options, run_studies
from casa.experiments.places import Where
from casa.experiments.studies import STUDIES, choose
from casa.experiments.tables import normalised, table, write_table


def curve(version, env, seed, score, chi=0.5, finished=True, n=6):
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=n) for name in NUMBERS}
    columns |= {"step": np.arange(1, n + 1) * 100.0, "return": np.linspace(0, score, n)}
    columns |= {"chi": np.full(n, chi), "cos_beta": chi + 0.1 * rng.normal(size=n)}
    return Curve(version, env, seed, finished, columns)


def study_curves(name, seeds=2):
    study = choose(name, envs="A-v0,B-v0", seeds=seeds, steps=600)
    return study, [
        curve(version, env, seed, i + seed, chi=i / 10)
        for i, version in enumerate(study.versions)
        for env in study.envs
        for seed in range(seeds)
    ]


def test_csv_and_back(tmp_path):
    _, curves = study_curves("ablation")
    curves[0].columns["chi"][2] = math.nan
    write_csv(curves, tmp_path / "rows.csv")
    again = read_csv(tmp_path / "rows.csv")
    assert len(again) == len(curves)
    for a, b in zip(again, curves, strict=True):
        assert a[:4] == b[:4]
        for name in NUMBERS:
            np.testing.assert_allclose(a.columns[name], b.columns[name], rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError):
        read_csv(tmp_path / "nothing.csv")


@pytest.mark.parametrize("name", STUDIES)
def test_every_figure_is_drawn_in_three_formats(tmp_path, name):
    pytest.importorskip("matplotlib")
    study, curves = study_curves(name)
    curves[0].columns["chi"][:] = math.nan  # a version without Q
    written = figures.draw(in_order(curves, study), study, tmp_path / name)
    assert [path.suffix for path in written] == [".png", ".pdf", ".svg"]
    assert all(path.stat().st_size > 2000 for path in written)
    assert all(version in written[2].read_text() for version in study.versions)


def test_a_curve_is_the_mean_over_seeds_at_common_steps():
    runs = [curve("a", "A-v0", seed, score) for seed, score in enumerate((2.0, 4.0))]
    steps, values = figures.grid(runs, "return", points=6)
    np.testing.assert_allclose(steps, runs[0].columns["step"])
    np.testing.assert_allclose(values.mean(0), np.linspace(0, 3, 6))


def test_scores_are_scaled_in_each_environment_or_human_normalised():
    how, found = normalised([curve("a", "X-v0", 0, 2.0), curve("b", "X-v0", 0, 6.0), curve("a", "X-v0", 1, 4.0)])
    assert found == {("a", "X-v0", 0): 0.0, ("b", "X-v0", 0): 1.0, ("a", "X-v0", 1): 0.5} and "0 (lowest" in how
    how, found = normalised([curve("a", "ALE/Breakout-v5", 0, 30.5)])
    assert how == "human-normalised score" and found["a", "ALE/Breakout-v5", 0] == pytest.approx(1.0, abs=0.01)


def test_unfinished_runs_are_shown_as_missing(tmp_path):
    study, curves = study_curves("drtrace")
    curves[0] = curves[0]._replace(finished=False)
    _, rows = table(curves, study)
    assert [row["runs"] for row in rows] == ["3 of 4", "4 of 4"]
    text = write_table(curves, study, tmp_path / "drtrace")
    assert "Correlation of chi and cos_beta" in text and "A-v0 0." in text
    assert "3 of 4" in text and (tmp_path / "drtrace-table.md").read_text() == text
    with open(tmp_path / "drtrace-table.csv") as file:
        assert [row["version"] for row in csv.DictReader(file)] == ["casa", "casa-no-dr"]


def test_mistakes_are_one_sentence(tmp_path):
    study, console = choose("drtrace", envs="CartPole-v1"), Console(quiet=True)
    (tmp_path / "file").write_text("")
    for studies, directory, jobs, words in (
        ([], tmp_path, 1, "name a study: motivation"),
        ([study], tmp_path, -1, "--jobs must be >= 0, got -1"),
        ([study], tmp_path / "file", 1, "as --dir"),
    ):
        with pytest.raises(UserError, match=words):
            run_studies(studies, Options(directory, Where(jobs=jobs)), console)


def test_figures_only_needs_no_runs_but_the_numbers(tmp_path):
    pytest.importorskip("matplotlib")
    study = choose("ablation", envs="CartPole-v1", seeds=1, steps=600)
    options = Options(tmp_path, Where(), figures_only=True)
    console = Console(quiet=True)
    assert run_studies([study], options, console) == 0 and not list(tmp_path.glob("*.png"))
    write_csv([curve(version, "CartPole-v1", 0, 1.0) for version in study.versions], tmp_path / "ablation-rows.csv")
    assert run_studies([study], options, console) == 0 and (tmp_path / "ablation.png").exists()
