"""A real Chromium, and pages in it whose errors and requests are noted down."""

import os
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def launched():
    """Chromium; the test is skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium, or name it in CHROMIUM")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser, address, width=1280, height=900, scheme="light"):
    """A page, with what went wrong in `page.errors` and what it loaded in `page.requests`; nothing may go wrong."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.errors, page.requests = [], []

    def note(message):
        if message.type in ("error", "warning"):
            page.errors.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    assert page.errors == []


def serious(page):
    """What axe-core finds on the page that keeps people from using it."""
    from axe_playwright_python.sync_playwright import Axe

    found = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found]


def colours(page, selector):
    """The number of different colours in a canvas: 1 or 2 where nothing is drawn."""
    script = """canvas => { const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(data.buffer)).size; }"""
    return page.locator(selector).first.evaluate(script)


def picture(page, selector):
    """The content of a canvas, to compare."""
    return page.locator(selector).first.evaluate("canvas => canvas.toDataURL()")
