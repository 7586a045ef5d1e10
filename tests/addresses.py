"""Raw prose: the State of the Union addresses from which the bundled corpus was made."""

import html
import lzma
from pathlib import Path


def addresses():
    """Yield the text of each address, oldest first."""
    path = Path(__file__).with_name("addresses.txt.xz")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for _, text in zip(lines, lines, strict=True):  # headings and texts
            yield html.unescape(text)
