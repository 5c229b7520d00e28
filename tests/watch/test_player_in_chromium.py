"""The player in a real browser: frames, bars, jumps, keyboard; no request, no error, no barrier."""

import pytest
from tests.support.browser import colours, opened, picture, serious
from tests.support.made_films import continuous_film, made_film

from casa.watch.files import write_html

pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    return write_html(made_film(), tmp_path_factory.mktemp("player") / "player.html").as_uri()


def at(page):
    return int(page.locator("#scrub").input_value())


def test_it_shows_what_was_recorded(chromium, player):
    film = made_film()
    with opened(chromium, player) as page:
        assert [url for url in page.requests if not url.startswith("data:")] == [player]
        page.locator("#scrub").fill("9")
        moment = film.moments[9]
        rows = page.locator(".bars tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == ["▸", "right", "fire"]
        assert f"{moment.pi[1]:.3f}" in rows[1]
        assert "return 0.9: left" in page.locator("#now").inner_text()
        assert page.locator("#frame").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [32, 42]
        assert colours(page, "#lines canvas") > 5


def test_play_step_scrub_speed_and_jumps(chromium, player):
    with opened(chromium, player) as page:
        frame = page.locator("#frame").get_attribute("src")
        page.get_by_role("button", name="One step forward").click()
        assert at(page) == 1 and page.locator("#frame").get_attribute("src") != frame
        page.get_by_role("button", name="One step back").click()
        page.get_by_role("button", name="Large changes of V").click()
        while at(page) != 12:  # V jumps at step 12
            before = at(page)
            page.get_by_role("button", name="Large changes of V").click()
            assert at(page) > before
        page.get_by_role("button", name="disagree (1)").click()
        assert at(page) == 7
        page.get_by_role("button", name="Rewards (1)").click()
        assert at(page) == 20
        drawn = picture(page, "#lines canvas")
        page.get_by_label("Speed").select_option("8")
        page.get_by_role("button", name="Play").click()
        page.get_by_role("button", name="Play").wait_for(timeout=5000)  # Pause becomes Play at the end
        assert at(page) == 30 and "terminated" in page.locator("#now").inner_text()
        assert picture(page, "#lines canvas") != drawn


def test_by_keyboard(chromium, player):
    with opened(chromium, player) as page:
        keys = {"ArrowRight": 1, "Shift+ArrowRight": 11, "ArrowLeft": 10, "r": 20, "d": 7, "End": 30}
        for key, step in keys.items():
            page.keyboard.press(key)
            assert at(page) == step, key
        page.keyboard.press("Space")
        page.get_by_role("button", name="Pause").wait_for(timeout=2000)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_people_can_use_it(chromium, player, width, scheme):
    with opened(chromium, player, width=width, scheme=scheme) as page:
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_agents_without_pi_or_q_and_environments_without_pictures(chromium, tmp_path):
    for options, words in (
        ({"q": False}, "has no Q"),
        ({"pi": False, "frames": False}, "acts on Q"),
    ):
        file = write_html(made_film(**options), tmp_path / "player.html")
        with opened(chromium, file.as_uri()) as page:
            assert words in page.locator("#bars").inner_text()
            assert page.locator("#blank").is_visible() == ("frames" in options)


def test_continuous_actions_are_curves(chromium, tmp_path):
    film = continuous_film()
    with opened(chromium, write_html(film, tmp_path / "player.html").as_uri()) as page:
        first = picture(page, "canvas.density")
        assert colours(page, "canvas.density") > 2 and page.locator("canvas.density").count() == 4
        page.locator("#scrub").fill("9")
        assert picture(page, "canvas.density") != first
        value = film.cast.parts[0].chosen(film.moments[9].action[0])
        assert page.locator(".bars tbody th").first.inner_text() == f"0 {value}"
        assert serious(page) == []


def test_a_hostile_name_runs_nothing(chromium, tmp_path):
    hostile = "</script><img src=x onerror='window.harmed = 1'>"
    file = write_html(made_film(title=hostile, names=(hostile, "b", "c")), tmp_path / "player.html")
    with opened(chromium, file.as_uri()) as page:
        assert page.locator("h1").inner_text() == hostile
        assert page.evaluate("window.harmed") is None
