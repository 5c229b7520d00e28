"""The page of a suite in a real browser: it sorts, filters, draws, and needs no network."""

import numpy as np
import pytest
from tests.support.browser import colours, opened, serious

from casa.page.suite import Chart, Table, suite_page

HOSTILE = "</script><b>x</b>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    columns = [("game", "text", False), ("casa", "score", True), ("HNS", "percent", True), ("seeds", "text", False)]
    rows = [["Pong", 14.6, 0.9, "2 of 2"], ["Breakout", 100.0, 3.4, "1 of 2"], ["Alien", None, None, "0 of 2"]]
    x, y = np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5, 1.0])
    lines = [("casa", x, y, y - 0.1, y + 0.1)]
    found = {"Pong": lines, "Breakout": lines, "Alien": []}
    games = [Chart(game, "agent steps", its_lines) for game, its_lines in found.items()]
    page = suite_page(
        "casa on atari57", "today", ["a fact", HOSTILE], [Table("HNS by game", columns, rows, [HOSTILE])],
        [Chart("HNS", "HNS", lines)], games,
    )  # fmt: skip
    file = tmp_path_factory.mktemp("suite") / "suite.html"
    file.write_text(page, encoding="utf-8")
    return file.as_uri()


def games(page):
    return page.locator("tbody tr th").all_inner_texts()


def test_it_sorts_with_missing_runs_last(chromium, address):
    with opened(chromium, address) as page:
        assert page.requests == [address] and games(page) == ["Pong", "Breakout", "Alien"]
        casa = page.get_by_role("button", name="casa", exact=True)
        casa.click()
        assert games(page) == ["Breakout", "Pong", "Alien"]
        assert page.locator("th[aria-sort=descending]").count() == 1
        casa.click()
        assert games(page) == ["Pong", "Breakout", "Alien"]
        page.get_by_role("button", name="game", exact=True).click()
        assert games(page) == ["Alien", "Breakout", "Pong"]
        assert page.locator("tbody").inner_text().count("missing") == 2


def test_it_filters_rows_and_charts(chromium, address):
    with opened(chromium, address) as page:
        assert page.locator("#games figure:visible").count() == 3 and colours(page, "#games canvas") > 5
        page.get_by_label("Filter").fill("PONG")
        assert games(page) == ["Pong"] and page.locator("#games figure:visible").count() == 1
        assert page.locator("#count").inner_text() == "1 of 3 rows"
        page.get_by_label("Filter").fill("")
        page.get_by_label("Only rows with missing runs").check()
        assert games(page) == ["Breakout", "Alien"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(chromium, address, scheme):
    with opened(chromium, address, scheme=scheme) as page:
        assert HOSTILE in page.locator("#facts").inner_text()
        assert serious(page) == []
    with opened(chromium, address, width=360, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
