"""The report as HTML and Markdown."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from studies import example_study as example

from zipflm.studies.report import html, markdown
from zipflm.studies.study import ContextScore, Tried, build_study
from zipflm.studies.tables import columns
from zipflm.studies.wording import headline, lead

VOID = {"meta", "input", "br", "link", "hr", "img", "source"}


class Page(HTMLParser):
    """Checks that elements nest, and collects the cells of the comparison table."""

    def __init__(self, html):
        super().__init__()
        self.open = []
        self.rows = []
        self.best = []
        self._in_comparison = self._in_cell = False
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
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

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self._in_cell = self._in_cell and tag not in ("td", "th")
        if tag == "table":
            self._in_comparison = False

    def handle_data(self, data):
        if self._in_comparison and self._in_cell:
            self.rows[-1][-1] += data


def chart_data(study):
    """The data for the script of the page."""
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html(study), re.S)
    return dict(json.loads(data))


@pytest.fixture(scope="module")
def study():
    return example.study()


def test_page_shows_the_comparison_table(study):
    page = Page(html(study))
    shown = columns(study)
    assert page.rows[1] == [column.title for column in shown]
    assert page.rows[2:] == [[column.text(row) for column in shown] for row in study.rows]
    # One per split.
    lowest = min(row.perplexity["test"].mean for row in study.rows)
    assert page.best == [str(lowest)] * 2


def test_report_page_is_self_contained(study):
    text = html(study)
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!#)""", text)
    assert not re.search(r"@import|url\((?!#)", text.split("<script", 1)[0])
    assert "default-src 'none'" in text


HOSTILE = "</script><script>alert(1)</script><b onclick='x'>&amp;\"|`<!--"


def test_escapes_hostile_text():
    members = [
        replace(example.member("SM"), problem="", label=HOSTILE, run=HOSTILE),
        example.member("ADP-T", rank=1),
        replace(example.member("CNN", problem=HOSTILE), checkpoint=HOSTILE),
    ]
    text = example.text()
    text.vocabulary.words[5:60] = [HOSTILE] * 55
    made = build_study(members, text, title=HOSTILE, dataset="tiny", protocol={HOSTILE: HOSTILE})
    tried = Tried(label=HOSTILE, setting=HOSTILE, perplexity=1.0, seconds=1.0, is_chosen=True)
    made = replace(made, tried=(tried,))
    page = html(made)
    assert "<script>alert" not in page and "<b onclick" not in page
    parsed = Page(page)
    assert parsed.rows[2][0] == HOSTILE and HOSTILE in parsed.rows[4]
    assert chart_data(made)["models"][0]["label"] == HOSTILE


def test_row_without_result_shows_its_problem():
    study = example.study(broken="CNN")
    (row,) = (row for row in Page(html(study)).rows if row and row[0] == "CNN")
    assert "diverged: <loss> nan" in row
    # One cell instead of test, its interval, the difference from the best, and valid.
    assert len(row) == len(columns(study)) - 3
    (line,) = (text for text in markdown(study).splitlines() if text.startswith("| CNN | -"))
    assert line.endswith("| diverged: <loss> nan |")


def test_unfinished_report():
    study = example.study(broken="CNN")
    page, text = html(study), markdown(study)
    for place in ("<title>", "<h1>"):
        assert f"{place}Unfinished: 7 of 8 models done; missing: CNN" in page
    assert re.findall(r'class="tile"><b>(.*?)</b><strong>(.*?)<', page) == [
        ("7 of 8 models done", "Unfinished")
    ]
    assert text.startswith("# Unfinished: 7 of 8 models done; missing: CNN\n")
    for verdict in ("is best", "has the lowest", "fewest parameters", "shortest training"):
        assert verdict not in page and verdict not in text


def test_report_has_the_protocol_of_every_perplexity():
    study = example.study(seeds=2, broken="CNN")
    lines = re.findall(r"^\| ([\w-]+) \| ([12]) \| (valid|test) \| (.*) \|$", markdown(study), re.M)
    finished = [label for label in example.LABELS if label != "CNN"]
    assert [line[:3] for line in lines] == [
        (m, s, p) for m in finished for s in "12" for p in ("valid", "test")
    ]
    shown = "update-00000100 | word | complete | 64 | 0 | 3,000 | 3,000 | 0 | 1 | 3,000 | float32 |"
    assert lines[0][3].startswith(shown)


def test_page_starts_with_headline_and_lead(study):
    page = html(study)
    assert f"<h1>{headline(study)}</h1>" in page and study.title in page.split("<h1>")[0]
    assert f'<p class="lead">{lead(study)}</p>' in page
    assert "With one seed, " in page and "With one seed, " not in html(example.study(seeds=2))


def test_marks_rows_level_with_the_best():
    members = [example.member("SM", 1), example.member("ADP", 2), example.member("CNN", rank=9)]
    near = html(example.study_of(*members[:2]))
    assert near.count('class="num level"') == 1 and "not significant" in near
    far = example.study_of(*members[1:])
    assert far.tied_with_best == ("CNN",) and 'class="num level"' not in html(far)


def test_table_of_all_pairs(study):
    table = html(study).split('<table class="pairs">')[1].split("</table>")[0]
    assert table.split('<th scope="row">')[1].split("</th>")[0] == study.ranked[0].label
    assert table.count("<small>") == 8 * 7
    clear = sum(pair.excludes_zero for pair in study.differences.values())
    assert table.count('class="num better"') == table.count('class="num worse"') == clear
    pairs = markdown(study).split("## All pairs")[1].split("## ")[0]
    assert pairs.count("**") == 4 * clear


def test_omits_empty_sections():
    page = html(example.study_of(example.member("SM")))
    for name in ('id="pairs"', 'id="paper"', 'id="tuning"', 'id="context"'):
        assert name not in page
        assert name in html(_with_everything())


def _with_everything():
    study = example.study(dataset="wikitext-103")
    perplexity = {"valid": 20.0, "test": 21.0}
    contexts = (
        ContextScore(label="ADP-T", train_block=512, block=512, context=480, perplexity=perplexity),
        ContextScore(label="ADP", train_block=512, block=512, context=0, perplexity={"test": 9.0}),
    )
    tried = (
        Tried(label="SM", setting="lr=1", perplexity=50.0, seconds=30.0, is_chosen=True),
        Tried(
            label="SM",
            setting="lr=9",
            perplexity=None,
            seconds=4.0,
            is_chosen=False,
            problem="diverged | nan",
        ),
    )
    return replace(study, contexts=contexts, tried=tried)


def test_tables_of_contexts_and_tuning():
    lines = markdown(_with_everything()).splitlines()
    for line in (
        "| ADP-T | 512 | 512 | 480 | 20.00 | 21.00 | 18.35 | 19.03 |",
        "| ADP | 512 | 512 | 0 | - | 9.00 | - | - |",
        "| SM | lr=1 | 50.00 | 30.0 s | yes |",
        "| SM | lr=9 | diverged \\| nan | 4.0 s |  |",
        "| all |  |  | 34.0 s |  |",
    ):
        assert line in lines


def test_chart_data_of_models():
    study = example.study(seeds=2, broken="CNN")
    models = chart_data(study)["models"]
    assert [model["label"] for model in models] == list(example.LABELS)
    for row, model in zip(study.rows, models, strict=True):
        if row.label == "CNN":
            assert (model["perplexity"], model["low"], len(model["curve"])) == (None, None, 3)
            continue
        assert model["params"] == row.num_params
        assert model["low"] < model["perplexity"] < model["high"]
        assert [point["update"] for point in model["curve"]] == list(range(10, 101, 10))
    assert len({model["marker"] for model in models}) == len(models)


def test_chart_data_of_bins(study):
    found = chart_data(study)["bins"]
    for by, expected in (("word", (8.2920, 14.3313)), ("previous", (2.9541, 3.5343))):
        ours, wiki, billion = found[by]
        assert (ours["name"], ours["reference"]) == ("this study", "ADP-T")
        assert wiki["name"] == "the paper, WikiText-103"
        assert billion["name"] == "the paper, Billion Word"
        assert (wiki["bins"][2]["name"], billion["bins"][2]["name"]) == ("1-10", "1-10")
        assert tuple(s["bins"][2]["loss"]["ADP-T"] for s in (wiki, billion)) == expected
    bins = found["word"][0]["bins"]
    assert "UNK" not in {b["name"] for b in bins}  # the text has no unknown words
    for b in bins:
        assert all(low <= b["loss"][label] <= high for label, (low, high) in b["interval"].items())
    settings = [example.member(f"ADP-T bands {i}k/9k", rank=i) for i in range(2)]
    assert len(chart_data(example.study_of(*settings))["bins"]["word"]) == 1


@pytest.mark.parametrize(
    ("word", "code"), [("a", "`a`"), ("`", "`` ` ``"), ("a``b", "``` a``b ```")]
)
def test_markdown_escapes_backticks(word, code):
    text = example.text()
    text.vocabulary.words[4:] = [word] * (len(text.vocabulary.words) - 4)
    members = [example.member("SM"), example.member("ADP-T", rank=20)]
    assert f" {code} " in markdown(example.study_of(*members, on=text))
