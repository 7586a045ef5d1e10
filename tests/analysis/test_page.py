"""The page: complete, alone in the world, and safe against whatever a text or a run is called."""

import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.headline import headline
from zipflm.analysis.page import lead, protocol_rows, render
from zipflm.analysis.report import markdown
from zipflm.analysis.study import NOT_COMPILED, Study
from zipflm.analysis.tables import columns
from zipflm.presets import preset

VOID = {"meta", "input", "br", "link", "hr", "img", "source"}


class Page(HTMLParser):
    """Checks that elements nest, and collects the texts of the cells of the comparison."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.best: list[str] = []
        self._in_comparison = self._in_cell = False
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self._in_comparison = given.get("class") == "comparison"
        if tag == "tr" and self._in_comparison:
            self.rows.append([])
        self._in_cell = tag in ("td", "th") or (self._in_cell and tag in ("i", "button"))
        if self._in_comparison and tag in ("td", "th"):
            self.rows[-1].append("")
            if "best" in (given.get("class") or ""):
                self.best.append(given["data-value"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._in_cell = self._in_cell and tag not in ("td", "th")
        if tag == "table":
            self._in_comparison = False

    def handle_data(self, data: str) -> None:
        if self._in_comparison and self._in_cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def study() -> Study:
    return example.study()


def test_the_table_on_the_page_is_the_table(study: Study) -> None:
    page = Page(render(study))
    shown = columns(study)
    assert page.rows[1] == [column.title.replace("95 %", "95\u00a0%") for column in shown]
    assert page.rows[2:] == [[column.text(row) for column in shown] for row in study.rows]
    # The lowest of each split, once.
    lowest = min(row.perplexity["test"].mean for row in study.rows)
    assert page.best == [str(lowest)] * 2


def test_the_page_refers_to_nothing_outside_itself(study: Study) -> None:
    html = render(study)
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!#)""", html)
    assert not re.search(r"@import|url\((?!#)", html.split("<script", 1)[0])
    assert "default-src 'none'" in html


HOSTILE = "</script><script>alert(1)</script><b onclick='x'>&amp;\"|`"


def test_hostile_text_stays_text_wherever_it_comes_from(study: Study) -> None:
    members = [
        replace(example.member("SM"), problem="", label=HOSTILE, run=HOSTILE, input=HOSTILE),
        example.member("ADP-T", rank=1),
        replace(example.member("CNN", problem=HOSTILE), checkpoint=HOSTILE),
    ]
    text = example.text()
    text.vocabulary.words[5:60] = [HOSTILE] * 55
    made = build(members, text, title=HOSTILE, dataset="tiny", facts={HOSTILE: HOSTILE})
    html = render(made)
    assert "<script>alert" not in html and "<b onclick" not in html
    page = Page(html)
    assert page.rows[2][0] == HOSTILE and HOSTILE in page.rows[4]


def test_the_data_of_the_charts_is_json_and_cannot_end_its_element(study: Study) -> None:
    html = render(replace(study, reference="</script>&<!--"))
    (data,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', html, re.S)
    assert json.loads(data)["reference"] == "</script>&<!--"


def test_a_member_without_a_result_has_its_reason_across_its_perplexities() -> None:
    study = example.study(broken="CNN")
    page = Page(render(study))
    (row,) = (row for row in page.rows if row and row[0] == "CNN")
    assert "diverged: <loss> nan" in row
    # One cell instead of test, its interval, the distance to the best, and valid.
    assert len(row) == len(columns(study)) - 3


def test_a_study_without_any_result_makes_a_page() -> None:
    members = [example.member("SM", problem="diverged")]
    made = build(members, example.text(), title="t", dataset="tiny", facts={})
    html = render(made)
    Page(html)
    assert "Unfinished: 0 of 1 models" in html


def test_an_unfinished_study_says_so_instead_of_a_verdict() -> None:
    study = example.study(broken="CNN")
    html, text = render(study), markdown(study)
    for place in ("<title>", "<h1>"):
        assert f"{place}Unfinished: 7 of 8 models; missing: CNN" in html
    assert re.findall(r'class="tile"><b>(.*?)</b><strong>(.*?)<', html) == [
        ("7 of 8 models", "Unfinished")
    ]
    assert text.startswith("# Unfinished: 7 of 8 models; missing: CNN\n")
    for verdict in ("is best", "has the lowest", "fewest parameters", "shortest training"):
        assert verdict not in html and verdict not in text


def test_tiles_name_the_best_where_there_is_a_choice(study: Study) -> None:
    html = render(study)
    tiles = re.findall(r'class="tile"><b>(.*?)</b><strong>(.*?)</strong><span>(.*?)</span>', html)
    by_what = {what: (value, label) for value, label, what in tiles}
    best = min(study.rows, key=lambda row: row.perplexity["test"].mean)
    assert by_what["lowest test perplexity"][1] == best.label
    assert by_what["shortest training, compilation left out"] == ("10.0 s", "SM")
    assert by_what["fewest parameters"][1] == "ADP-T"
    alone = build([example.member("SM")], example.text(), title="t", dataset="tiny", facts={})
    assert 'class="tile"' not in render(alone)


def test_what_was_to_be_compiled_and_was_not_is_among_the_findings() -> None:
    members = [
        replace(example.member(label, rank=rank), compiled=label != "SM")
        for rank, label in enumerate(("SM", "ADP"))
    ]
    made = build(members, example.text(), title="t", dataset="tiny", facts={})
    html = render(made)
    assert f"<li>SM {NOT_COMPILED}.</li>" in html and html.count(NOT_COMPILED) == 1


def test_every_perplexity_has_its_protocol() -> None:
    study = example.study(seeds=2, broken="CNN")
    rows = protocol_rows(study)
    finished = [label for label in example.LABELS if label != "CNN"]
    expected = [(m, s, p) for m in finished for s in "12" for p in ("valid", "test")]
    assert [(row["model"], row["seed"], row["split"]) for row in rows] == expected
    assert rows[0] == {
        **{"model": "SM", "seed": "1", "split": "valid", "checkpoint": "update-00000100"},
        **{"unit": "word", "break mode": "complete", "block": "64", "context": "0"},
        **{"tokens": "3,000", "words": "3,000", "unk": "0", "eos": "1", "positions": "3,000"},
        **{"precision": "float32", "perplexity": rows[0]["perplexity"]},
    }


def test_the_paper_is_quoted_on_its_own_datasets_only() -> None:
    assert "its printed figures on WikiText-103" in render(example.study(dataset="wikitext-103"))
    assert "its printed figures" not in render(example.study(dataset="tiny"))


def test_the_page_begins_with_the_result_and_the_seeds_behind_it(study: Study) -> None:
    html = render(study)
    title = re.search(r"<h1>(.*?)</h1>", html)
    assert title is not None and title[1] == escape(headline(study))
    assert study.title in html.split("<h1>")[0]
    assert "One seed a model" in html and "One seed a model" not in render(example.study(seeds=2))
    assert "0.25 passes over the text" in html


def test_seeds_and_a_recipe_unlike_the_papers_are_told_in_words() -> None:
    members = [
        replace(example.member("SM", seed), config=preset("wikitext-2", "SM")) for seed in (1, 2, 3)
    ]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    assert lead(study).startswith("1 model, 3 seeds each, ")
    recipe = "rotary positions, normalised queries and keys, squared ReLU, RMS norm, "
    assert recipe in lead(study) and "no biases and Muon." in lead(study)
    assert escape(lead(study)) in render(study) and lead(study) in markdown(study)
    papers = replace(members[0], config=preset("wikitext-103", "SM"))
    plain = build([papers], example.text(), title="t", dataset="tiny", facts={})
    assert "Unlike" not in lead(plain) and "1 seed each" in lead(plain)


def test_perplexities_come_before_everything_else(study: Study) -> None:
    groups = [column.group for column in columns(study)]
    assert groups[0] == "" and set(groups[1:5]) == {"perplexity"} and "perplexity" not in groups[5:]


def test_rows_that_cannot_be_told_from_the_best_are_marked() -> None:
    members = [example.member("SM", 1), example.member("ADP", 2), example.member("CNN", rank=9)]
    near = build(members[:2], example.text(), title="t", dataset="tiny", facts={})
    assert render(near).count('class="num level"') == 1
    assert "not told apart" in render(near)
    far = build(members[1:], example.text(), title="t", dataset="tiny", facts={})
    assert far.level_with_best == ("CNN",) and 'class="num level"' not in render(far)
