"""lm-evaluation-harness gives the same numbers as `zipflm score`.

These tests run if the harness is installed, here or in the Python interpreter that the environment
variable ZIPFLM_LM_EVAL names.
"""

import importlib.util
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from loaded_models import loaded, on_disk

import zipflm
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.interop.huggingface.exchange import export_run

TASKS = Path(__file__).parents[3] / "examples" / "lm_eval"
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "huggingface.md"
SOURCE = Path(zipflm.__file__).parents[1]


def rows(name):
    return [json.loads(line) for line in (TASKS / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def harness():
    """Command to start the harness."""
    other = os.environ.get("ZIPFLM_LM_EVAL")
    if other is None and importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm_eval is not installed; set ZIPFLM_LM_EVAL to a Python that has it")
    return [other or sys.executable, "-m", "lm_eval", "run"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """A model with some words of the tasks; its windows are longer than their texts."""
    root = tmp_path_factory.mktemp("lm-eval")
    (root / "text.txt").write_text("the cat sat on the mat\na dog ran after the mouse\n" * 3)
    prepare(str(root / "data"), {"train": [str(root / "text.txt")]}, Options(min_count=1))
    lm = loaded(DataFolder.open(root / "data"), "ADP-T", ["output.cutoffs=8", "input.cutoffs=8"])
    export_run(on_disk(lm, root / "run"), root / "hf" / "union")
    (root / "examples").symlink_to(TASKS.parent)
    return lm, root


def answers(harness, root, number, tasks):
    """Return totals and samples of tasks for a command in docs/guides/huggingface.md."""
    shown = re.findall(r"^lm_eval run (.*)$", PAGE.read_text(), re.MULTILINE)[number]
    out = root / f"out-{number}"
    command = [*harness, *shlex.split(shown), "--batch_size=3", f"--output_path={out}"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "HF_HOME": str(root / "home")}
    done = subprocess.run(
        [*command, "--log_samples"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (total,) = out.rglob("results_*.json")
    samples = {}
    for task in tasks:
        (path,) = out.rglob(f"samples_{task}_*.jsonl")
        found = [json.loads(line) for line in path.read_text().splitlines()]
        samples[task] = sorted(found, key=lambda sample: sample["doc_id"])
    return json.loads(total.read_text())["results"], samples


@pytest.fixture(scope="module")
def results(harness, lm):
    return answers(harness, lm[1], 0, ("zipflm_words", "zipflm_endings"))


@pytest.mark.slow
def test_rolling_perplexity_matches_score(lm, results):
    scored = [lm[0].score(row["text"]) for row in rows("words.jsonl")]
    totals, samples = results
    for text, sample in zip(scored, samples["zipflm_words"], strict=True):
        assert float(sample["resps"][0][0]) == pytest.approx(text.logprob, abs=1e-4)
    perplexity = math.exp(
        -sum(text.logprob for text in scored) / sum(len(text.words) for text in scored)
    )
    assert totals["zipflm_words"]["word_perplexity,none"] == pytest.approx(perplexity, rel=1e-5)


@pytest.mark.slow
def test_own_text_matches_score(harness, lm):
    text = "the cat sat on the mat\na mouse slept\n"
    (lm[1] / "article.txt").write_text(text)
    totals, samples = answers(harness, lm[1], 1, ["zipflm_words"])
    scored = lm[0].score(text.removesuffix("\n"))
    (sample,) = samples["zipflm_words"]
    assert float(sample["resps"][0][0]) == pytest.approx(scored.logprob, abs=1e-4)
    assert totals["zipflm_words"]["word_perplexity,none"] == pytest.approx(scored.perplexity)


@pytest.mark.slow
def test_endings_match_score(lm, results):
    totals, samples = results
    right = []
    for row, sample in zip(rows("endings.jsonl"), samples["zipflm_endings"], strict=True):
        expected = [text.logprob for text in lm[0].score(row["endings"], prefix=row["beginning"])]
        found = [float(answer[0][0]) for answer in sample["resps"]]
        assert found == pytest.approx(expected, abs=1e-4)
        right.append(max(expected) == expected[row["label"]])
    assert totals["zipflm_endings"]["acc,none"] == pytest.approx(sum(right) / len(right))


def test_task_files_are_consistent():
    code = (TASKS / "zipflm_tasks.py").read_text()
    for task in ("zipflm_words", "zipflm_endings"):
        text = (TASKS / f"{task}.yaml").read_text()
        assert f"task: {task}\n" in text
        names = [word.split(".")[1] for word in text.split() if word.startswith("zipflm_tasks.")]
        assert names and all(f"def {name}(" in code for name in names)
    assert all("text" in row for row in rows("words.jsonl"))
    assert all(0 <= row["label"] < len(row["endings"]) == 2 for row in rows("endings.jsonl"))
