"""Files of settings: `@my.cfg` among overrides stands for its lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def expanded(overrides: Iterable[str] | None) -> list[str]:
    """Overrides, with the lines of a file in place of its name after `@`.

    Empty lines and comments (after ` #`) are left out.
    """
    found: list[str] = []
    for override in overrides or ():
        if not override.startswith("@"):
            found.append(override)
            continue
        path = Path(override[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not a text; name a file of lines key=value") from None
        lines = (f" {line}".partition(" #")[0].strip() for line in text.splitlines())
        found += filter(None, lines)
    return found
