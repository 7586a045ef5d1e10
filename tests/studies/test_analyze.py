"""Reports of existing runs."""

import json
import shutil
from dataclasses import replace

import pytest
from studies.study_runs import count_loaded, count_opened

from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.presets import preset
from zipflm.studies import analyze as module
from zipflm.studies.analyze import analyze, dataset_of_paper

ON_CPU = ScoringOptions(device="cpu")


@pytest.fixture
def runs(whole_study):
    return [whole_study.run_of(name) for name in ("BPE-T", "ADP-T")]


def test_reports_runs_with_context_sizes(data, runs, tmp_path):
    found = analyze(runs, data, tmp_path, context_sizes=[0, 8])
    assert [row.label for row in found.rows] == ["BPE-T", "ADP-T"]
    assert [(c.label, c.context) for c in found.contexts] == [
        ("BPE-T", 0),
        ("BPE-T", 8),
        ("ADP-T", 0),
        ("ADP-T", 8),
    ]
    for contexts, row in ((found.contexts[:2], found.rows[0]), (found.contexts[2:], found.rows[1])):
        plain, wider = (c.perplexity["test"] for c in contexts)
        assert plain == pytest.approx(row.perplexity["test"].mean) and wider != plain
    assert "| ADP-T | 16 | 16 | 8 |" in (tmp_path / "report.md").read_text()
    assert 'id="context"' in (tmp_path / "report.html").read_text()


def test_analysis_opens_data_and_loads_runs_once(data, runs, tmp_path, monkeypatch):
    loaded, opened = count_loaded(monkeypatch, module), count_opened(monkeypatch)
    analyze(runs, data, tmp_path, context_sizes=[0, 4, 8], options=ON_CPU)
    assert [path.parent.parent for path in loaded] == runs
    assert opened == [data, data / "bpe"]


def test_analysis_matches_the_study(data, runs, whole_study, tmp_path):
    found = analyze(runs, data, tmp_path, options=ON_CPU)
    table = json.loads((whole_study.out / "table.json").read_text())
    for row, expected in zip(found.rows, table["rows"], strict=True):
        assert row.perplexity["test"].mean == pytest.approx(expected["perplexity_test"])
        assert row.first.versions is not None and row.mean("seconds") is not None


def test_analysis_does_not_overwrite_a_study(data, run, whole_study, monkeypatch):
    monkeypatch.setattr(module, "load_run", lambda *_: pytest.fail("refuse before the work"))
    before = (whole_study.out / "report.html").read_bytes()
    with pytest.raises(ValueError, match=f"out={whole_study.out}: already contains a study"):
        analyze([run], data, whole_study.out)
    assert (whole_study.out / "report.html").read_bytes() == before


@pytest.mark.parametrize("size", [16, 17, -1])
def test_rejects_context_sizes_that_fill_the_block(data, run, tmp_path, monkeypatch, size):
    monkeypatch.setattr(module, "load_run", lambda *_: pytest.fail("refuse before the work"))
    with pytest.raises(ValueError, match=f"context={size}: .*0"):
        analyze([run], data, tmp_path / "out", context_sizes=[0, size])
    assert not (tmp_path / "out").exists()


def test_runs_of_one_factorization_are_labeled_by_folder(data, run, tmp_path):
    copies = [shutil.copytree(run, tmp_path / name) for name in ("first", "second")]
    found = analyze(copies, data, tmp_path / "out", options=ON_CPU)
    assert [row.label for row in found.rows] == ["first", "second"]
    assert {row.first.factorization for row in found.rows} == {"ADP-T"}


def test_rejects_runs_with_equal_names(data, run, tmp_path):
    with pytest.raises(ValueError, match="two runs are called seed-1"):
        analyze([run, run], data, tmp_path)


def test_rejects_data_with_another_vocabulary(run, tmp_path):
    texts = {split: [tmp_path / f"{split}.txt"] for split in ("train", "test")}
    for (text,) in texts.values():
        text.write_text("some other words\n")
    prepare(tmp_path / "data", texts, Options(min_count=1))
    with pytest.raises(ValueError, match="was prepared with a different vocabulary"):
        analyze([run], tmp_path / "data", tmp_path / "out")


def test_scores_the_chosen_checkpoint(data, run, tmp_path):
    found = analyze([run], data, tmp_path, checkpoint=3, options=ON_CPU)
    assert found.rows[0].first.checkpoint == "update-00000003"
    with pytest.raises(ValueError, match="checkpoint=2: .*: 3"):
        analyze([run], data, tmp_path, checkpoint=2)


def test_recognizes_models_of_the_paper_under_any_name():
    wiki = [replace(preset("wikitext-103", kind), name="mine") for kind in ("ADP-T", "CNN")]
    assert dataset_of_paper(wiki) == "wikitext-103"
    assert dataset_of_paper([preset("billion-word", "ASM")]) == "billion-word"
    authors = preset("wikitext-103", "ADP-T", variant="fairseq")
    assert dataset_of_paper([authors]) == "wikitext-103"
    assert dataset_of_paper([*wiki, preset("billion-word", "ASM")]) == ""
    large = preset("billion-word", "ADP-T", size="large")
    for other in (large, preset("tiny", "ADP-T")):
        assert dataset_of_paper([other]) == ""
