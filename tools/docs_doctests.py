"""Griffe extension: show the doctests of docstrings as code, not as block quotes."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            fenced = _DOCTEST.sub(
                lambda found: f"```pycon\n{found[0].strip()}\n```\n", obj.docstring.value
            )
            obj.docstring.value = fenced
