"""The documentation builds without a warning, covers the package, and needs no network to be read."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def build(folder, config=ROOT / "mkdocs.yml"):
    # Not --quiet, which also hides the warnings from --strict.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), "--config-file", str(config)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """Addresses that a browser loads to show a page: not those of links that a reader may follow."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        address = dict(attrs).get(LOADED.get(tag, ""))
        if address and dict(attrs).get("rel") != "canonical":
            self.found.append(address)


def test_every_page_and_every_room_is_there(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").glob("*.md")}
    package = ROOT / "src" / "casa"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    pages |= {Path("reference", f"{room}.html") for room in rooms if not room.startswith("_")}
    assert len(pages) > 15
    for page in {"index.html", "contributing.html", "changelog.html", "reference/index.html", *pages}:
        assert (site / page).exists(), page


def test_nothing_is_loaded_from_the_network(site):
    count = 0
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        count += len(loads.found)
        assert not [address for address in loads.found if re.match(r"(https?:)?//", address)], page
    assert count > 100
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_what_pages_load_is_in_the_site(site):
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        for address in loads.found if page.name != "404.html" else []:
            if not address.startswith("data:"):
                assert (page.parent / address.split("?")[0].split("#")[0]).exists(), f"{page} loads {address}"


def test_search_works_from_disk(site):
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index")
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_reference_has_public_names_alone(site):
    targets = (site / "reference" / "targets.html").read_text(encoding="utf-8")
    assert 'id="casa.targets.dr_trace.dr_trace"' in targets
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    headings = re.findall(r'<h\d id="(casa[\w.]+)"', pages)
    assert len(headings) > 200
    assert not [name for name in headings if any(part.startswith("_") for part in name.split("."))]


def test_arguments_in_docstrings_are_a_list(site):
    text = (site / "reference" / "targets.html").read_text(encoding="utf-8")
    assert "<li><code>discounts[t]</code> = γ (1 - terminatedₜ);</li>" in text


def test_the_map_links_to_the_reference_and_raw_data_comes_along(site):
    page = (site / "paper-map.html").read_text(encoding="utf-8")
    links = re.findall(r'class="autorefs autorefs-internal"[^>]*href="(reference/[\w.#/]+)"', page)
    assert len(links) > 40, links
    assert 'href="files/results/r2d2-casa-targets.jsonl"' in page
    assert (site / "files" / "results" / "r2d2-casa-targets.jsonl").exists()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="training.html' in home and 'href="files/examples/corridor.py"' in home


def test_a_broken_link_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[a page](that-is-not-there.md)\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: small\ntheme: material\n", encoding="utf-8")
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert "that-is-not-there.md" in done.stdout + done.stderr
