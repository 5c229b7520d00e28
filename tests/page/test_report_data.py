import json
import re

import pytest
from tests.support.made_runs import HOSTILE, made_rows, made_run

from casa import atari57
from casa.page.metrics import sections
from casa.page.report import RunData, report_data, report_page


def test_runs_that_differ_in_the_seed_alone_are_one_group():
    runs = [made_run(seed=1), made_run(seed=2), made_run("ppo", seed=1), made_run(seed=1, **{"learner.lr": 1e-4})]
    groups = report_data(runs, "")["groups"]
    assert [(group["name"], len(group["runs"])) for group in groups] == [
        ("casa on CartPole-v1, lr 0.001", 2),
        ("ppo on CartPole-v1", 1),
        ("casa on CartPole-v1, lr 0.0001", 1),
    ]


def test_runs_without_a_configuration_stand_alone():
    runs = [RunData(name, {}, made_rows()) for name in ("one", "two")]
    assert [group["name"] for group in report_data(runs, "")["groups"]] == ["one", "two"]


def test_a_game_has_both_normalized_scores_and_its_references():
    run = made_run(env="Breakout", rows=made_rows(20, hns=0.1))
    data = report_data([run], "")
    scores = data["groups"][0]["scores"]
    assert scores["hns"] == [atari57.hns("Breakout", 19.0)]
    assert scores["saber"] == [atari57.saber("Breakout", 19.0)]
    assert {row["name"]: row["hns"] for row in data["references"]}["human, Breakout"] == 1.0
    plain = report_data([made_run()], "")
    assert "hns" not in plain["groups"][0]["scores"] and not plain["references"]


def test_scores_are_the_last_and_best_returns():
    rows = [{"step": i, "return": x} for i, x in enumerate([1.0, 7.0, 3.0, None])]
    scores = report_data([made_run(rows=rows)], "")["groups"][0]["scores"]
    assert (scores["return"], scores["best"], scores["step"], scores["frames"]) == ([3.0], [7.0], [3], [None])


@pytest.mark.parametrize("rows", [[], [{}], [{"step": 1}], [{"return": "high", "step": None}], [{"bottleneck": 3}]])
def test_a_run_with_little_or_odd_content_still_makes_a_page(rows):
    assert "<html" in report_page([made_run(rows=rows)], "")


def test_every_column_has_a_place_and_only_one():
    names = ["step", "frames", "return", "cos_beta", "cos_new", "cos_beta/linear1", "something_else", "other/x/y"]
    placed = [chart["column"] for section in sections(names) for chart in section["charts"]]
    assert sorted(placed) == sorted(set(names) - {"step", "frames"})
    titles = {chart["column"]: section["title"] for section in sections(names) for chart in section["charts"]}
    assert titles["cos_new"] == "Conflict of the gradients"
    assert titles["cos_beta/linear1"] == "Conflict by layer"
    assert titles["something_else"] == titles["other/x/y"] == "Other columns"


def test_ten_long_runs_with_many_columns_stay_below_five_megabytes():
    more = {f"cos_layer_{i}": 0.123456789 + i for i in range(90)}
    rows = made_rows(900, **more)
    page = report_page([made_run(seed=seed, rows=rows) for seed in range(10)], "")
    assert 1e6 < len(page.encode()) < 5e6


def test_videos_go_in_while_they_are_small():
    run = made_run()
    run = RunData(run.name, run.config, run.rows, (), {"b.mp4": b"1" * 700_000, "a.mp4": b"2" * 700_000, "c.mp4": None})
    videos = report_data([run], "")["videos"]
    assert [bool(video["data"]) for video in videos] == [True, False, False]


def test_no_text_of_a_run_becomes_markup():
    run = made_run(recipe=HOSTILE, env=HOSTILE, name=HOSTILE, rows=[{"step": 1, HOSTILE: 1.0, "bottleneck": HOSTILE}])
    page = report_page([run], HOSTILE)
    assert len(re.findall("<script", page)) == 2  # the data and the page's own
    assert "<img" not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data)["groups"][0]["runs"][0]["name"] == HOSTILE
