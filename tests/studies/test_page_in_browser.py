"""The report page in Chromium.

Runs where a Chromium is found; ZIPFLM_NEED_CHROMIUM=1 makes its absence a failure.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from serving.browser import Browser, needs_chromium
from studies import example_study as example

from zipflm.studies.report import html

pytestmark = needs_chromium

Open = Callable[..., Browser]
COUNT_BARS = "document.querySelectorAll(`rect.bar[data-model='SM']`).length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def open_page(browser, tmp_path):
    def opened(study, *, fragment="", width=1200):
        path = tmp_path / "report.html"
        path.write_text(html(study), encoding="utf-8")
        browser.open(path.as_uri() + fragment, width=width)
        browser.wait_for("document.documentElement.dataset.ready")
        return browser

    yield opened
    assert browser.problems == []
    assert {url.partition("#")[0] for url in browser.requests} == {
        (tmp_path / "report.html").as_uri()
    }


def test_page_draws_charts_and_hides_models(open_page):
    browser = open_page(example.study(broken="ASM"))
    for chart in ("word-bins", "previous-bins", "curves", "time", "params"):
        assert browser.evaluate(f"document.querySelector('#{chart} > svg').role") == "img"
    # One bar in each of about eight bins, in both charts.
    assert browser.evaluate(COUNT_BARS) > 8
    assert browser.evaluate("document.querySelectorAll('path.whisker').length") > 50
    browser.click("#legend button[data-model='SM']")
    assert browser.evaluate(COUNT_BARS) == 0
    assert browser.evaluate("location.hash") == "#hide=SM"
    hidden = "[...document.querySelectorAll('.comparison .hidden-model')].map((r) => r.dataset.row)"
    assert browser.evaluate(hidden) == ["SM"]
    browser.point("rect.bar[data-model='CNN'][data-bin='1-10']")
    tip = browser.wait_for("document.getElementById('tip').textContent")
    assert tip.startswith("CNN, 1-10loss ")


def test_sorts_the_comparison_table(open_page):
    study = example.study()
    browser = open_page(study)
    first = "document.querySelector('table.comparison tbody tr').dataset.row"
    assert browser.evaluate(first) == "SM"
    browser.click("th[data-column='0'] button")
    assert browser.evaluate(first) == "ADP"
    lowest = min(study.intervals, key=lambda label: study.intervals[label].low)
    headers = "[...document.querySelectorAll('table.comparison th')]"
    for title, expected in (("95% interval", lowest), ("vs. best", "ADP-T")):
        header = f"{headers}.find((th) => th.innerText === {title!r})"
        browser.evaluate(f"{header}.querySelector('button').click()")
        assert browser.evaluate(first) == expected
    assert browser.evaluate("document.querySelector('th[data-column=\"1\"]').innerText") == "test"


def test_link_hides_models_and_narrow_page_fits(open_page):
    study = example.study(dataset="wikitext-103", seeds=2)
    browser = open_page(study, fragment="#hide=ADP&hide=BPE", width=500)
    models = "[...document.querySelectorAll('#word-bins .bar')].map((bar) => bar.dataset.model)"
    assert set(browser.evaluate(models)) == set(example.LABELS) - {"ADP", "BPE"}
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_point_labels_do_not_overlap(open_page):
    members = [example.member(f"ADP-T bands {i}k/155k/100k", rank=3 + i // 4) for i in range(6)]
    lost = example.member("SM", rank=1)
    score = replace(lost.scores["test"], loss=12.0, known_loss=12.0)
    members.append(replace(lost, scores={"test": score}))
    browser = open_page(example.study_of(*members))
    boxes = browser.evaluate(
        "[...document.querySelectorAll('#params text.strong')]"
        ".map((text) => text.getBoundingClientRect().toJSON())"
    )
    # Two of six names have no room; the tooltip has them.
    assert len(boxes) == 4
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            is_beside = a["left"] >= b["right"] or b["left"] >= a["right"]
            assert is_beside or a["top"] + 2 >= b["bottom"] or b["top"] + 2 >= a["bottom"]
    above = browser.evaluate("document.querySelector('#params .above').textContent")
    assert above == "above: SM 163,000"


@pytest.mark.parametrize(("width", "is_difference"), [(1200, False), (500, False), (1200, True)])
def test_page_cuts_and_labels_outlier_bars(open_page, width, is_difference):
    study = example.study()
    loss = dict.fromkeys(example.LABELS, 4.0) | {"BPE": 31.5}
    unknown = replace(study.word_bins[0], name="UNK", loss=loss, interval={}, difference={})
    browser = open_page(replace(study, word_bins=(unknown, *study.word_bins)), width=width)
    if is_difference:
        browser.click("#bin-controls fieldset:last-child button:last-child")
    labels = "[...document.querySelectorAll('#word-bins .broken')].map((text) => text.textContent)"
    assert browser.evaluate(labels) == ["27.5" if is_difference else "31.5"]
    heights = "[...document.querySelectorAll(`#word-bins [data-bin='1-10']`)].map((b) => b.height.baseVal.value)"  # noqa: E501
    assert max(browser.evaluate(heights)) > 100
    top = "document.querySelector('#word-bins').getBoundingClientRect().top"
    assert browser.evaluate(
        f"[...document.querySelectorAll('#word-bins .bar')]"
        f".every((bar) => bar.getBoundingClientRect().top >= {top} - 1)"
    )
