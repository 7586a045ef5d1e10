"""The page in a real browser: it draws, hides a model on a click, and asks for nothing.

Runs where a Chromium is found; ZIPFLM_NEED_CHROMIUM=1 makes its absence a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from studies import example_study as example

from zipflm.studies.report import html as render

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("ZIPFLM_NEED_CHROMIUM"), reason="no Chromium found"
)

# Written into the page by the test: what happened, readable in the dumped document.
PROBE = """<script>
const log = document.createElement("output");
log.id = "probe";
document.body.append(log);
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => problems.push(event.blockedURI));
const bars = () => document.querySelectorAll("rect.bar[data-model='SM']").length;
const before = bars();
document.querySelector("#legend button[data-model='SM']").click();
const after = bars();
const bar = document.querySelector("rect.bar[data-model='CNN'][data-bin='1-10']");
bar.dispatchEvent(new PointerEvent("pointermove", { clientX: 50, clientY: 50 }));
const head = document.querySelector("th[data-column='0'] button");
head.focus();
head.click();
const sorted = document.querySelector("table.comparison tbody tr").dataset.row;
const address = location.hash;
const requests = performance.getEntriesByType("resource").length;
const wide = document.documentElement.scrollWidth > innerWidth;
const whiskers = document.querySelectorAll("path.whisker").length;
const firstColumn = document.querySelector("th[data-column='1']").textContent;
log.textContent = JSON.stringify({ before, after, requests, problems, wide, sorted, address,
  whiskers, firstColumn,
  focused: document.activeElement === head,
  tip: document.getElementById("tip").textContent });
</script>"""


def dump(page: str, folder: Path, *, width: int = 1200, fragment: str = "") -> str:
    """The document after its scripts ran."""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    assert CHROMIUM is not None, "ZIPFLM_NEED_CHROMIUM is set, but no Chromium is installed"
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    command += ["--disable-background-networking", "--disable-dev-shm-usage"]
    url = path.as_uri() + fragment
    result = subprocess.run([*command, url], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def probe(document: str) -> dict[str, object]:
    import html
    import json

    found = re.search(r'<output id="probe">(.*?)</output>', document, re.S)
    assert found is not None
    return dict(json.loads(html.unescape(found.group(1))))


def test_the_page_draws_every_row_and_hides_a_model_on_a_click(tmp_path: Path) -> None:
    page = render(example.study(broken="ASM")).replace("</body>", PROBE + "</body>")
    document = dump(page, tmp_path)
    assert 'data-ready="true"' in document
    table = document.split('<table class="comparison">')[1].split("</table>")[0]
    for label in example.LABELS:
        assert f'data-row="{label}"' in table
    seen = probe(document)
    assert seen["problems"] == [] and seen["requests"] == 0
    # A bar in each of eight bins or so, in both charts; empty bins have none.
    assert isinstance(seen["before"], int) and seen["before"] > 8 and seen["after"] == 0
    assert isinstance(seen["whiskers"], int) and seen["whiskers"] > 50
    assert seen["firstColumn"] == "test"
    assert str(seen["tip"]).startswith("CNN, 1-10loss ")
    assert re.search(r'<tr data-row="SM" class="hidden-model">', document)
    assert seen["address"] == "#hide=SM"
    assert seen["focused"] is True and seen["sorted"] == "ADP"
    assert 'aria-pressed="false"' in document
    for chart in ("word-bins", "previous-bins", "curves", "time", "params"):
        assert re.search(rf'id="{chart}"><svg [^>]*role="img"', document)


def test_a_link_can_hide_models_and_a_narrow_page_does_not_scroll_sideways(
    tmp_path: Path,
) -> None:
    page = render(example.study(dataset="wikitext-103", seeds=2))
    document = dump(
        page.replace("</body>", PROBE + "</body>"),
        tmp_path,
        width=500,
        fragment="#hide=ADP&hide=BPE",
    )
    assert 'data-model="ADP"' not in document.split('id="word-bins"')[1].split("</figure>")[0]
    assert probe(document)["wide"] is False


def test_names_of_points_do_not_overlap_and_an_outlier_is_named(tmp_path: Path) -> None:
    members = [example.member(f"ADP-T bands {i}k/155k/100k", rank=3 + i // 4) for i in range(6)]
    lost = example.member("SM", rank=1)
    score = replace(lost.scores["test"], loss=12.0, known_loss=12.0)
    members.append(replace(lost, scores={"test": score}))
    study = example.study_of(*members)
    script = """<script>
    const boxes = [...document.querySelectorAll("#params text.strong")].map((t) => t.getBoundingClientRect());
    const overlaps = boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right
      && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)).length;
    const log = document.createElement("output");
    log.id = "probe";
    log.textContent = JSON.stringify({ names: boxes.length, overlaps,
      above: document.querySelector("#params .above").textContent });
    document.body.append(log);
    </script>"""  # noqa: E501
    seen = probe(dump(render(study).replace("</body>", script + "</body>"), tmp_path))
    # Two of six names have no room in so small a space; hovering shows them.
    assert seen == {"names": 4, "overlaps": 0, "above": "above: SM 163,000"}


@pytest.mark.parametrize(("width", "is_difference"), [(1200, False), (500, False), (1200, True)])
def test_bars_that_would_flatten_all_others_are_cut_and_say_their_value(
    tmp_path: Path, width: int, is_difference: bool
) -> None:
    study = example.study()
    loss = dict.fromkeys(example.LABELS, 4.0) | {"BPE": 31.5}
    unknown = replace(study.word_bins[0], name="UNK", loss=loss, interval={}, difference={})
    study = replace(study, word_bins=(unknown, *study.word_bins))
    script = """<script>
    if (DIFFERENCE) [...document.querySelectorAll("#bin-controls button")].at(-1).click();
    const chart = document.querySelector("#word-bins"), box = chart.getBoundingClientRect();
    const cut = [...chart.querySelectorAll(".broken")].map((text) => text.textContent);
    const size = (bar) => Math.max(bar.getBBox().height, bar.getBBox().width);
    const bars = [...chart.querySelectorAll("rect.bar[data-bin='1-10']")].map(size);
    const log = document.createElement("output");
    log.id = "probe";
    log.textContent = JSON.stringify({ cut, highest: Math.max(...bars),
      inside: [...chart.querySelectorAll("rect.bar")].every((bar) => bar.getBoundingClientRect().top >= box.top - 1) });
    document.body.append(log);
    </script>""".replace("DIFFERENCE", str(is_difference).lower())  # noqa: E501
    seen = probe(dump(render(study).replace("</body>", script + "</body>"), tmp_path, width=width))
    assert seen["cut"] == ["27.5" if is_difference else "31.5"] and seen["inside"] is True
    assert isinstance(seen["highest"], int | float) and seen["highest"] > 100
