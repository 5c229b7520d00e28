"""`casa report`: the report of runs as a file, or on a local server that follows them while they train."""

from __future__ import annotations

import hashlib
import threading
import webbrowser
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console

from casa.errors import UserError
from casa.page.document import to_json
from casa.page.report import report_data, report_page
from casa.run.digest import REPORT, digest, now, write_report
from casa.run.messages import say

METRICS = "metrics.jsonl"


def report_command(console: Console, named: Sequence[Path], output: Path | None) -> Path:
    """Write the report of the runs that are `named`: to `output`, into the run (if it is one), or to ./report.html."""
    runs = find_runs(named)
    to = write_report(runs, output or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT)))
    size = to.stat().st_size / 2**20
    say(console, f"{to}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}, {size:.2f} MiB")
    return to


def find_runs(named: Sequence[Path]) -> list[Path]:
    """Each named run directory, and for a folder of runs (or of such folders) every run; UserError if there is none."""
    if not named:
        raise UserError("casa report needs a run directory, for instance: casa report runs/casa-Breakout-0")
    found: dict[Path, None] = {}
    for path in named:
        below = (file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{METRICS}"))
        inside = [path] if (path / METRICS).exists() else sorted(below)
        if not path.is_dir():
            raise UserError(f"{path} is not a run directory: it {'is a file' if path.exists() else 'does not exist'}")
        if not inside:
            raise UserError(f"{path} is not a run directory: it has no {METRICS}, and no run is in it")
        found |= dict.fromkeys(inside)
    return list(found)


def follow_command(console: Console, named: Sequence[Path], port: int, browser: bool = True) -> None:
    """Serve the report of runs on this machine alone, up to date at every reload, until Ctrl-C."""
    with serve(named, port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        say(console, f"following on {address} (only from this machine); Ctrl-C ends it")
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        server.serve_forever()


def serve(named: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server on localhost: / is the page, /data.json what it shows now. `port` 0: any free one."""
    find_runs(named)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another name for 127.0.0.1 would let a web page of somebody else read the answer (DNS rebinding).
            if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                self._answer(403, "text/plain", b"open this by 127.0.0.1 or localhost")
                return
            route = self.path.partition("?")[0]
            if route not in ("/", "/data.json"):
                self._answer(404, "text/plain", b"there is nothing here")
                return
            try:
                runs = find_runs(named)
                tag = _version(runs)
                if route == "/":
                    page = report_page([digest(run) for run in runs], now(), live=True)
                    self._answer(200, "text/html; charset=utf-8", page.encode())
                elif self.headers.get("If-None-Match") == tag:  # the runs have logged nothing since: no work
                    self._answer(304, "application/json", b"", tag)
                else:
                    data = to_json(report_data([digest(run) for run in runs], now()))
                    self._answer(200, "application/json", data.encode(), tag)
            except UserError as error:  # a run was removed
                self._answer(503, "text/plain; charset=utf-8", str(error).encode())

        def _answer(self, status: int, kind: str, content: bytes, tag: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a line for every question would bury the address."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used: {error.strerror or error}; give another --port, or 0") from error


def _version(runs: Sequence[Path]) -> str:
    """Changes whenever a file does that a report is made from."""
    patterns = (METRICS, "config.yaml", "eval-*.json", "videos/*.mp4")
    files = [file for run in runs for pattern in patterns for file in run.glob(pattern)]
    state = sorted((str(file), stat.st_size, stat.st_mtime_ns) for file in files if (stat := file.stat()))
    return f'"{hashlib.sha256(repr(state).encode()).hexdigest()}"'
