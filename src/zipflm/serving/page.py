"""The page at `/`: one HTML file that needs nothing else, joined from the sources in `web/`.

The policy that goes with it allows this style sheet, this script and questions to this server; a
word of a text that found its way into the page as HTML could still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template

# In this order: later ones use what earlier ones define.
_SCRIPTS = (
    *("elements", "numbers", "words", "server"),
    *("editor", "strip", "panel", "totals"),
    *("view", "showing", "chosen_word", "asking", "events", "models", "link", "page"),
)


@dataclass(frozen=True)
class Page:
    """What to send, and what to let it do."""

    html: str
    policy: str
    """For the header `Content-Security-Policy`."""


@cache
def page() -> Page:
    """The page; the same every time."""
    style = _source("page.css")
    script = "\n".join(['"use strict";', *(_source(f"{name}.js") for name in _SCRIPTS)])
    html = Template(_source("page.html")).substitute(css=style, script=script)
    allowed = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return Page(html, "; ".join(f"{name} {source}" for name, source in allowed.items()))


def _source(name: str) -> str:
    return (resources.files("zipflm.serving") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
