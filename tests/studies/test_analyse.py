"""Reports on runs that are there: scored once each, under names that tell them apart."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from studies.study_runs import WholeStudy, count_loaded, count_opened

from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.presets import preset
from zipflm.studies import analyse as module
from zipflm.studies.analyse import analyse, papers_dataset

ON_CPU = ScoringOptions(device="cpu")


@pytest.fixture
def runs(whole_study: WholeStudy) -> list[Path]:
    return [whole_study.run_of(name) for name in ("BPE-T", "ADP-T")]


def test_any_runs_make_a_report_with_the_table_of_contexts(
    data: Path, runs: list[Path], tmp_path: Path
) -> None:
    found = analyse(runs, data, tmp_path, context_sizes=[0, 8])
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
    assert json.loads((tmp_path / "table.json").read_text())["made_by"] == "analysis"


def test_a_run_is_loaded_once_and_a_data_folder_opened_once(
    data: Path, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, opened = count_loaded(monkeypatch, module), count_opened(monkeypatch)
    analyse(runs, data, tmp_path, context_sizes=[0, 4, 8], options=ON_CPU)
    assert [path.parent.parent for path in loaded] == runs
    assert opened == [data, data / "bpe"]


def test_the_numbers_are_those_of_the_study_that_trained_the_runs(
    data: Path, runs: list[Path], whole_study: WholeStudy, tmp_path: Path
) -> None:
    found = analyse(runs, data, tmp_path, options=ON_CPU)
    table = json.loads((whole_study.out / "table.json").read_text())
    for row, expected in zip(found.rows, table["rows"], strict=True):
        assert row.perplexity["test"].mean == pytest.approx(expected["perplexity_test"])
        assert row.first.versions is not None and row.mean("seconds") is not None


def test_an_analysis_does_not_overwrite_a_study(
    data: Path, run: Path, whole_study: WholeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "load_run", lambda *_: pytest.fail("refuse before the work"))
    before = (whole_study.out / "report.html").read_bytes()
    with pytest.raises(ValueError, match=f"--out {whole_study.out}: holds the report of a study"):
        analyse([run], data, whole_study.out)
    assert (whole_study.out / "report.html").read_bytes() == before


@pytest.mark.parametrize("size", [16, 17, -1])
def test_a_context_that_leaves_nothing_to_score_is_refused_before_the_work(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "load_run", lambda *_: pytest.fail("refuse before the work"))
    with pytest.raises(ValueError, match=f"--context-sizes {size}: must leave room.* give 0 to 15"):
        analyse([run], data, tmp_path / "out", context_sizes=[0, size])
    assert not (tmp_path / "out").exists()


def test_runs_of_one_factorization_go_by_the_names_of_their_folders(
    data: Path, run: Path, tmp_path: Path
) -> None:
    copies = [shutil.copytree(run, tmp_path / name) for name in ("first", "second")]
    found = analyse(copies, data, tmp_path / "out", options=ON_CPU)
    assert [row.label for row in found.rows] == ["first", "second"]
    assert {row.first.factorization for row in found.rows} == {"ADP-T"}


def test_two_runs_of_one_name_are_refused(data: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another run is called seed-1 as well"):
        analyse([run, run], data, tmp_path)


def test_data_of_another_vocabulary_are_refused(run: Path, tmp_path: Path) -> None:
    texts = {split: [tmp_path / f"{split}.txt"] for split in ("train", "test")}
    for (text,) in texts.values():
        text.write_text("some other words\n")
    prepare(tmp_path / "data", texts, Options(min_count=1))
    with pytest.raises(ValueError, match="was trained with the vocabulary"):
        analyse([run], tmp_path / "data", tmp_path / "out")


def test_a_chosen_checkpoint_is_the_one_that_is_scored(
    data: Path, run: Path, tmp_path: Path
) -> None:
    found = analyse([run], data, tmp_path, checkpoint=3, options=ON_CPU)
    assert found.rows[0].first.checkpoint == "update-00000003"
    with pytest.raises(ValueError, match="--checkpoint 2: .* has 3"):
        analyse([run], data, tmp_path, checkpoint=2)


def test_the_papers_rows_are_shown_beside_its_models_whatever_they_are_called() -> None:
    wiki = [replace(preset("wikitext-103", kind), name="mine") for kind in ("ADP-T", "CNN")]
    assert papers_dataset(wiki) == "wikitext-103"
    assert papers_dataset([preset("billion-word", "ASM")]) == "billion-word"
    authors = preset("wikitext-103", "ADP-T", variant="fairseq")
    assert papers_dataset([authors]) == "wikitext-103"
    assert papers_dataset([*wiki, preset("billion-word", "ASM")]) == ""
    rotary = replace(wiki[0], decoder=replace(wiki[0].decoder, positions="rotary"))
    large = preset("billion-word", "ADP-T", size="large")
    for other in (rotary, large, preset("tiny", "ADP-T")):
        assert papers_dataset([other]) == ""
