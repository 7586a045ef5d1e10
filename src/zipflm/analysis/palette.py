"""How each factorization looks, the same in every figure: colour, pattern, marker, dash.

The patterns are those of the paper's bar charts, so that figures read in black and white. Colours
keep every pair apart for the three kinds of colour blindness (a test simulates them); tied models
are the darker of their family, and ADP-T, which the others are measured against, has the colour of
the ink. The paper gives SM-T and ADP-T the same grid; here ADP-T's is light on dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle

from zipflm.analysis.study import Study


@dataclass(frozen=True)
class Style:
    """How one model is drawn."""

    light: str
    """Colour on a light page and in the figure files."""
    dark: str
    """Colour on a dark page."""
    pattern: str
    """Name of the paper's fill pattern."""
    hatch: str
    """The same in matplotlib's notation."""
    marker: str
    """matplotlib's name of the point shape."""
    dash: str
    """SVG dash array of lines; empty for a solid one."""
    is_dark: bool = False
    """Whether the pattern is drawn light on dark on a light page."""


STYLES: dict[str, Style] = {
    "SM": Style("#31b3ff", "#6dc7fd", "north east lines", "////", "o", ""),
    "SM-T": Style("#124cc6", "#5782bc", "grid", "++", "s", "7 3"),
    "BPE": Style("#ddad30", "#eaca1e", "vertical lines", "|||", "^", ""),
    "BPE-T": Style("#963315", "#c94f27", "horizontal lines", "---", "v", "7 3", True),
    "ASM": Style("#00974a", "#69b36f", "dots", "...", "D", "2 3"),
    "CNN": Style("#6b367b", "#8648e5", "crosshatch", "xxx", "P", "9 3 2 3", True),
    "ADP": Style("#e765a9", "#ff91bc", "north west lines", "\\\\\\\\", "X", ""),
    "ADP-T": Style("#16181d", "#f7f7f7", "grid", "++", "*", "", True),
}


def style_of(study: Study) -> dict[str, Style]:
    """The style of every row of a study."""
    return styles([(row.label, row.first.factorization) for row in study.rows])


def styles(rows: Sequence[tuple[str, str]]) -> dict[str, Style]:
    """A style for every (label, factorization), in the order given.

    The first row of a factorization has its style. Further rows of it, as an ablation has them,
    take the styles that no row claims, in the paper's order, and after the last one a colour with
    the pattern, marker and dash of another.
    """
    chosen: dict[str, Style] = {}
    claimed: set[str] = set()
    for label, factorization in rows:
        if factorization in STYLES and factorization not in claimed:
            chosen[label] = STYLES[factorization]
            claimed.add(factorization)
    free = [style for name, style in STYLES.items() if name not in claimed]
    others = [label for label, _ in rows if label not in chosen]
    chosen.update(zip(others, cycle(chain(free, _mixed())), strict=False))
    return {label: chosen[label] for label, _ in rows}


def _mixed() -> Iterator[Style]:
    """Every colour with the shapes of every other style."""
    known = list(STYLES.values())
    for shift in range(1, len(known)):
        for i, style in enumerate(known):
            other = known[(i + shift) % len(known)]
            yield replace(
                style,
                pattern=other.pattern,
                hatch=other.hatch,
                marker=other.marker,
                dash=other.dash,
            )
