import http.client
import io
import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from rich.console import Console
from tests.support.browser import opened, picture
from tests.support.made_runs import made_rows

from casa.cli import main
from casa.errors import UserError
from casa.report.html import find_runs, report_command, serve


def write_run(path, count=20, recipe="casa", seed=0):
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made_rows(count, seed)))
    (path / "config.yaml").write_text(f"recipe: {recipe}\nseed: {seed}\nenv:\n  id: CartPole-v1\n")
    return path


@contextmanager
def serving(*paths):
    with serve(paths) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def ask(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    return reply.status, reply.read(), reply.headers


def test_one_run_gets_its_own_report_and_several_get_one_here(tmp_path, monkeypatch):
    one, two = (write_run(tmp_path / "runs" / name) for name in ("a", "b"))
    console = Console(file=io.StringIO(), width=200)
    assert report_command(console, [one], None) == one / "report.html"
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(one), str(two)]) == 0
    assert (tmp_path / "report.html").exists()
    assert main(["report", "runs", "-o", "out/all.html"]) == 0
    assert (tmp_path / "out" / "all.html").exists()


@pytest.mark.parametrize("named", [[], ["missing"], ["empty"], ["file"]])
def test_a_wrong_argument_is_one_sentence(tmp_path, monkeypatch, capsys, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["report", *named]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "run directory" in error
    assert not (tmp_path / "report.html").exists()


def test_a_folder_of_runs_stands_for_its_runs(tmp_path):
    runs = [write_run(tmp_path / "study" / name) for name in ("a", "b")]
    assert find_runs([tmp_path / "study", runs[0]]) == runs
    assert find_runs([tmp_path]) == runs, "an experiment has its runs in a folder of its own"


def test_the_server_gives_the_page_and_new_data_to_this_machine_only(tmp_path):
    path = write_run(tmp_path / "run")
    with serving(path) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page, _ = ask(server, "/")
        assert status == 200 and b"connect-src 'self'" in page
        status, data, headers = ask(server, "/data.json")
        assert status == 200 and len(json.loads(data)["groups"][0]["runs"][0]["x"]["step"]) == 20
        assert ask(server, "/data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        with open(path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**made_rows(21)[-1]}) + "\n")
        assert ask(server, "/data.json", **{"If-None-Match": headers["ETag"]})[0] == 200
        assert ask(server, "/../config.yaml")[0] == 404
        assert ask(server, "/", Host=f"evil.example:{server.server_port}")[0] == 403
        with pytest.raises(UserError, match="give another --port"):
            serve([path], server.server_port)


def test_the_page_follows_a_run(chromium, tmp_path):
    path = write_run(tmp_path / "run")
    with serving(path) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        with opened(chromium, address) as page:
            page.get_by_role("button", name="Frames").click()
            page.get_by_text("All settings").click()
            page.get_by_role("button", name="casa on CartPole-v1").focus()
            before = picture(page, "#sections canvas")
            (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made_rows(40)))
            page.locator("#scores").get_by_text("40,000").wait_for(timeout=8000)
            assert picture(page, "#sections canvas") != before
            assert page.evaluate("document.activeElement.innerText") == "casa on CartPole-v1"
            assert page.locator("#config details").get_attribute("open") is not None
            assert page.locator("[data-axis=frames]").get_attribute("aria-pressed") == "true"
            assert all(url.startswith(address) for url in page.requests)
            shutil.rmtree(path)
            assert ask(server, "/data.json")[:2] == (503, f"{path} is not a run directory: it does not exist".encode())
            server.shutdown()
            server.server_close()
            page.locator("#about").get_by_text("has stopped").wait_for(timeout=8000)
            page.errors.clear()  # Chromium reports each question that was not answered
