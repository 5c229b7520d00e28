"""The report in a real browser: it draws, its controls work, it needs no network, people can use it."""

import pytest
from tests.support.browser import colours, opened, picture, serious
from tests.support.made_runs import HOSTILE, made_rows, made_run

from casa.page.report import report_page

CANVAS = "#sections figure canvas"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    runs = [made_run(seed=1), made_run(seed=2), made_run("ppo", seed=1)]
    runs += [made_run(env="Breakout", rows=made_rows(30, hns=1))]
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page(runs, "today"), encoding="utf-8")
    return file.as_uri()


def test_it_draws_and_asks_nobody(chromium, report):
    with opened(chromium, report) as page:
        assert page.requests == [report]
        assert page.locator("h1").inner_text() == "4 runs"
        for chart in page.locator("#sections details[open] figure:not([hidden]) canvas").all():
            assert chart.evaluate("c => c.width") > 100
        assert colours(page, CANVAS) > 10
        assert "cos β" in page.locator("#sections").inner_text()
        assert page.locator("#stages").inner_text().count("learner 85%") == 3


def test_every_control_changes_the_chart(chromium, report):
    with opened(chromium, report) as page:
        seen = [picture(page, CANVAS)]

        def changed(what):
            now = picture(page, CANVAS)
            assert now not in seen, what
            seen.append(now)

        page.get_by_role("button", name="Wall-clock").click()
        changed("axis")
        page.locator("#smooth").fill("0.9")
        changed("smoothing")
        page.get_by_label("Log y").check()
        changed("log y")
        page.get_by_label("Log x").check()
        changed("log x")
        page.get_by_label("Seeds as band").uncheck()
        changed("band")
        page.get_by_role("button", name="ppo on CartPole-v1").click()
        changed("legend")
        page.locator("#theme").click()
        changed("theme")
        page.get_by_label("Environment").select_option("Breakout")
        changed("environment")
        assert page.get_by_role("button", name="ppo on CartPole-v1").count() == 0


def test_hover_and_drag(chromium, report):
    with opened(chromium, report) as page:
        canvas, before = page.locator(CANVAS).first, picture(page, CANVAS)
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
        tip = page.locator("figure .tip").first.inner_text()
        assert "agent steps" in tip and "casa on CartPole-v1" in tip
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60)
        page.mouse.up()
        page.mouse.move(0, 0)
        assert page.locator("#reset").is_enabled()
        assert picture(page, CANVAS) != before
        page.locator("#reset").click()
        assert picture(page, CANVAS) == before


def test_by_keyboard_alone(chromium, report):
    with opened(chromium, report) as page:
        before = picture(page, CANVAS)
        page.locator("#axis button").first.focus()
        for _ in range(25):  # by Tab to the first chart
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "CANVAS":
                break
        page.keyboard.press("End")
        read = page.locator("figure output").first.inner_text()
        assert read.startswith("60,000 agent steps: ") and "ppo on CartPole-v1" in read
        page.keyboard.press("ArrowLeft")
        assert page.locator("figure output").first.inner_text() != read
        page.keyboard.press("+")
        assert page.locator("#reset").is_enabled()
        page.keyboard.press("Escape")
        assert page.locator("#reset").is_disabled()
        page.keyboard.press("Tab")
        assert picture(page, CANVAS) == before


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_people_can_use_it(chromium, report, width, scheme):
    with opened(chromium, report, width=width, scheme=scheme) as page:
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_unreadable_page_would_be_found(chromium, report):
    with opened(chromium, report) as page:
        page.evaluate("document.querySelector('#theme').removeAttribute('aria-label')")
        page.evaluate("document.querySelector('#theme').textContent = ''")
        assert any(finding.startswith("button-name") for finding in serious(page))


def test_a_hostile_run_runs_nothing(chromium, tmp_path):
    rows = [{"step": i, "return": 1.0, HOSTILE: i, "__proto__": 2, "bottleneck": HOSTILE} for i in range(3)]
    run = made_run(recipe=HOSTILE, env=HOSTILE, name=HOSTILE, rows=rows, **{HOSTILE: HOSTILE, "__proto__": "x"})
    file = tmp_path / "hostile.html"
    file.write_text(report_page([run, made_run()], HOSTILE), encoding="utf-8")
    with opened(chromium, file.as_uri()) as page:
        page.get_by_text("Other columns").click()
        page.get_by_text("All settings").click()
        assert HOSTILE in page.locator("#legend").inner_text()
        assert page.evaluate("window.harmed") is None
        assert page.requests == [file.as_uri()]


def test_even_markup_that_got_in_could_not_run(chromium, report):
    with opened(chromium, report) as page:
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed = 1\">')")
        script = "s => { const e = document.createElement('script'); e.textContent = s; document.body.append(e); }"
        page.evaluate(script, "window.harmed = 1")
        page.wait_for_timeout(100)
        assert page.evaluate("window.harmed") is None
        assert any("Content Security Policy" in error for error in page.errors)
        page.errors.clear()
