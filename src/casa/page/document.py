"""One HTML file with its style, script and data inside, which no reader's network is needed for."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any


def document(title: str, scripts: Sequence[str], data: Any, body: str, live: bool = False) -> str:
    """A page of `title` that runs the named scripts of `assets/` on `data`, in the markup of `assets/{body}`.

    The page's content-security policy allows exactly these scripts (by their hash) and no connection, except to the
    server that it comes from if `live`: text in `data` cannot run as code or load anything, whatever it holds.
    """
    script = "\n".join(asset(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
    policy += "img-src data:; media-src data:" + ("; connect-src 'self'" if live else "")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{asset('style.css')}</style>",
            "</head>",
            "<body>",
            asset(body),
            f'<script type="application/json" id="data">{to_json(data)}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return files("casa.page").joinpath("assets", name).read_text(encoding="utf-8")


def to_json(data: Any) -> str:
    """JSON that may stand inside a script element: `<` is escaped, so no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def data_uri(kind: str, content: bytes) -> str:
    """`content` as an address that holds it, for images and videos; `kind` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
