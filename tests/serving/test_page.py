"""The served page: self-contained, with a strict policy and readable colors."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from studies.test_palette import SIGHT, contrast, seen

from zipflm.serving.app import page

WEB = resources.files("zipflm.serving") / "web"
VOID = {"meta", "input", "br", "link", "hr", "img", "path", "circle"}
SURPRISE = [f"s{step}" for step in range(9)]
FIRST_AHEAD = [f"a{step}" for step in range(1, 5)]
SECOND_AHEAD = [f"b{step}" for step in range(1, 5)]


@pytest.fixture(scope="module")
def html():
    return page().body.decode()


class Elements(HTMLParser):
    """Checks that elements nest, and collects their attributes."""

    def __init__(self, html):
        super().__init__()
        self.open = []
        self.found = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_served_page_is_self_contained(html):
    for tag, attributes in Elements(html).found:
        assert "src" not in attributes, tag
        assert not (attributes.get("href") or "data:").startswith(("http", "/")), tag
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", html)
    assert "${" not in html.split("<script>")[0]


def test_content_security_policy(html):
    policy = page().headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert "unsafe" not in policy and "*" not in policy
    for element, rule in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_no_inline_handlers_or_styles(html):
    for tag, attributes in Elements(html).found:
        for name in attributes:
            assert name != "style" and not name.startswith("on"), f"{tag} has {name}"


def test_scripts_do_not_parse_html():
    sources = {file.name: file.read_text() for file in WEB.iterdir() if file.name.endswith(".js")}
    assert len(sources) > 5
    for name, source in sources.items():
        found = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", source)
        assert found is None, f"{name}: {found}"
        assert "</script" not in source and source.isascii()


def test_page_has_every_source(html):
    for file in WEB.iterdir():
        if not file.name.endswith(".html"):
            assert file.read_text() in html, file.name


def test_every_field_and_button_has_a_name(html):
    parsed = Elements(html)
    labelled = re.findall(r"<label[^>]*>[^<]+<select id=\"(\w+)\"", html)
    for tag, attributes in parsed.found:
        if tag in ("select", "textarea", "input"):
            assert "aria-label" in attributes or attributes["id"] in labelled
        if attributes.get("role") in ("slider", "group", "region"):
            assert {"aria-label", "aria-labelledby"} & set(attributes)


# --- Colors. ---


def pairs():
    """Colors per theme, by CSS class or `:root` and by property."""
    css = (WEB / "page.css").read_text()
    blocks = re.findall(r"^(:root|\.\w+) \{(.*?)\}", css, re.S | re.M)
    return {
        name.removeprefix("."): {
            prop: (light, dark)
            for prop, light, dark in re.findall(
                r"--(\w[\w-]*): light-dark\((#\w{6}), (#\w{6})\)", body
            )
        }
        for name, body in blocks
    }


THEMES = pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])


@THEMES
def test_contrast_of_text(theme):
    colors = pairs()
    root = colors[":root"]
    for name in (*SURPRISE, *FIRST_AHEAD, *SECOND_AHEAD):
        assert contrast(root["ink"][theme], colors[name]["shade"][theme]) >= 4.5, name
    for text in ("ink", "soft", "accent", "bad"):
        for ground in ("page", "card", "mark", "tint"):
            assert contrast(root[text][theme], root[ground][theme]) >= 4.5, (text, ground)
    assert contrast(root["bad"][theme], root["bad-page"][theme]) >= 4.5
    assert contrast(root["edge"][theme], root["card"][theme]) >= 3


@THEMES
def test_contrast_of_line_ends(theme):
    colors = pairs()
    # On stronger shades, line ends have the color of the text.
    for name in SURPRISE[:3]:
        assert contrast(colors[":root"]["soft"][theme], colors[name]["shade"][theme]) >= 4.5


@THEMES
@pytest.mark.parametrize("sight", SIGHT)
def test_shades_differ_in_lightness(theme, sight):
    lightness = [seen(pairs()[name]["shade"][theme], sight)[0] for name in SURPRISE]
    steps = np.diff(lightness) * (-1 if theme == 0 else 1)
    assert (steps > 0.008).all() and abs(lightness[-1] - lightness[0]) > 0.2


@THEMES
@pytest.mark.parametrize("sight", SIGHT)
def test_comparison_colors_are_distinct_for_color_blind_readers(theme, sight):
    colors = pairs()
    for first, second in zip(FIRST_AHEAD[1:], SECOND_AHEAD[1:], strict=True):
        a, b = (seen(colors[name]["shade"][theme], sight) for name in (first, second))
        assert np.linalg.norm(a - b) > 0.08, (first, second)
