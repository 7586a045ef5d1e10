"""Colours and patterns of models can be told apart."""

from itertools import combinations

import numpy as np
import pytest

from zipflm.studies.figures import STYLES, choose_styles

# Machado, Oliveira & Fernandes 2009, full severity, for linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "deuteranopia": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "tritanopia": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}
# Ottosson 2020: linear RGB to cone responses to OKLab.
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def linear(color):
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def seen(color, sight):
    return TO_LAB @ np.cbrt(TO_CONES @ np.clip(SIGHT[sight] @ linear(color), 0, 1))


def contrast(a, b):
    low, high = sorted(linear(color) @ [0.2126, 0.7152, 0.0722] for color in (a, b))
    return float((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("page", ["light", "dark"])
def test_colors_are_distinct_for_color_blind_readers(page, sight):
    """0.10 in OKLab is about five times the just noticeable difference."""
    colors = [getattr(style, page) for style in STYLES.values()]
    gaps = [np.linalg.norm(seen(a, sight) - seen(b, sight)) for a, b in combinations(colors, 2)]
    assert min(gaps) > 0.10


def test_colors_contrast_with_the_page():
    assert min(contrast(style.light, "#ffffff") for style in STYLES.values()) > 2
    assert min(contrast(style.dark, "#16181d") for style in STYLES.values()) > 3


def test_patterns_match_the_paper():
    assert [style.pattern for style in STYLES.values()] == [
        "north east lines",
        "grid",
        "vertical lines",
        "horizontal lines",
        "dots",
        "crosshatch",
        "north west lines",
        "grid",
    ]
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)


def test_more_rows_than_styles_are_distinct():
    look = choose_styles([(f"ADP-T {i}", "ADP-T") for i in range(30)])
    assert len({(style.light, style.marker, style.dash) for style in look.values()}) == 30
    first = list(look.values())[:8]
    assert first[0] is STYLES["ADP-T"] and len({style.light for style in first}) == 8
