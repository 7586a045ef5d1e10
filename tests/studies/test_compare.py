"""Studies: order, going on, failures, what is written and said; with a pretended trainer mostly."""

import errno
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies.study_runs import (
    SENTENCES,
    SHORT,
    PretendTrainer,
    WholeStudy,
    compare_together,
    count_loaded,
    make_data,
    pretend_score,
)

from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.runs.load import load_run
from zipflm.studies.compare import compare
from zipflm.studies.members import ScoredRun, WordScores, kept_scores, score_run
from zipflm.studies.plan import Request
from zipflm.studies.progress import print_table
from zipflm.studies.study import NOT_COMPILED


def request_for(data: Path, out: Path, **changes: object) -> Request:
    fields: dict[str, object] = {"factorizations": ("SM", "BPE", "ADP-T"), **changes}
    return Request(data=data, preset="tiny", out=out, **fields)  # type: ignore[arg-type]


def test_members_are_trained_scored_and_reported_once(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = PretendTrainer()
    outcome = compare(request_for(data, tmp_path), train=trainer, score=pretend_score)
    assert trainer.trained == ["SM", "BPE", "ADP-T"]
    assert outcome.page == tmp_path / "report.html" and outcome.page.is_file()
    said = capsys.readouterr().out
    assert "[1/3] SM: training" in said
    assert "[3/3] ADP-T: done, update 200/200, valid perplexity 30.00, 2.0 s" in said
    assert "a line of the trainer" not in said
    assert "a line of the trainer" in (tmp_path / "members/SM/seed-1/output-0.txt").read_text()
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["SM", "BPE", "ADP-T"]
    assert rows[0]["members"][0]["checkpoint"] == "update-00000200"
    assert rows[0]["training_time"] == 2.0 and rows[0]["training_memory"] == 9
    # 1 token/s while the model is compiled, then 18 and 20.
    assert rows[0]["training_tokens_per_s"] == pytest.approx(18)
    again = PretendTrainer()
    request = request_for(data, tmp_path, overrides=("training.report_every=7",))
    compare(request, train=again, score=pretend_score)
    assert again.trained == []


def test_an_interrupted_study_says_so_and_goes_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = PretendTrainer(stops_at="BPE")
    outcome = compare(request_for(data, tmp_path), train=first, score=pretend_score)
    said = capsys.readouterr().out
    assert "BPE: stopped" in said and "ADP-T: not trained" in said and "failed" not in said
    assert outcome.stopped and first.trained == ["SM", "BPE"]
    problems = [row.problem for row in outcome.study.rows]
    assert problems[0] == ""
    assert problems[1].startswith("interrupted") and problems[2].startswith("not trained")
    report = tmp_path / "report.md"
    assert report.read_text().startswith("# Unfinished: 1 of 3 models; missing: BPE and ADP-T\n")
    second = PretendTrainer()
    outcome = compare(request_for(data, tmp_path), train=second, score=pretend_score)
    assert "Unfinished" not in report.read_text()
    assert second.trained == ["BPE", "ADP-T"] and not outcome.stopped
    assert len(outcome.study.finished) == 3


def test_one_that_diverges_has_its_row_and_the_others_finish(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = PretendTrainer(diverges="SM")
    outcome = compare(request_for(data, tmp_path), train=trainer, score=pretend_score)
    assert [bool(row.problem) for row in outcome.study.rows] == [True, False, False]
    assert "non-finite loss" in (tmp_path / "report.html").read_text()
    print_table(outcome.study)
    assert "SM: so many updates in a row had a non-finite loss" in capsys.readouterr().out


def test_if_all_fail_there_is_no_report(data: Path, tmp_path: Path) -> None:
    request = request_for(data, tmp_path, factorizations=("SM",))
    outcome = compare(request, train=PretendTrainer(diverges="SM"), score=pretend_score)
    assert outcome.failures == {"SM": "so many updates in a row had a non-finite loss"}
    assert outcome.page is None and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("override", ["decoder.num_layers=1", "training.max_updates=100"])
def test_a_study_that_was_trained_otherwise_is_refused(
    data: Path, tmp_path: Path, override: str
) -> None:
    compare(request_for(data, tmp_path), train=PretendTrainer(), score=pretend_score)
    other = request_for(data, tmp_path, overrides=(override,))
    with pytest.raises(ValueError, match="^SM: "):
        compare(other, train=PretendTrainer(), score=pretend_score)


def test_a_member_whose_checkpoint_is_damaged_is_trained_again(data: Path, tmp_path: Path) -> None:
    compare(request_for(data, tmp_path), train=PretendTrainer(), score=pretend_score)
    (checkpoint,) = (tmp_path / "members/BPE/seed-1/checkpoints").iterdir()
    (checkpoint / "weights.safetensors").write_bytes(b"cut sho")
    again = PretendTrainer()
    compare(request_for(data, tmp_path), train=again, score=pretend_score)
    assert again.trained == ["BPE"]


def test_an_infinite_perplexity_is_the_members_problem(data: Path, tmp_path: Path) -> None:
    def score(run: Path, *rest: Any) -> ScoredRun:
        found = pretend_score(run, *rest)
        if run.parent.name == "SM" and run.name == "seed-2":
            bad = {s: WordScores(w.nll * 1e20, w.protocol) for s, w in found.splits.items()}
            return ScoredRun(found.checkpoint, bad)
        return found

    request = request_for(data, tmp_path, seeds=2)
    outcome = compare(request, train=PretendTrainer(), score=score)
    assert outcome.study.rows[0].problem.startswith("seed 2: a mean loss of")
    assert outcome.page.is_file() and len(outcome.study.finished) == 3


def test_a_full_disk_is_told_with_the_place_and_leaves_the_report_before_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(request_for(data, tmp_path), train=PretendTrainer(), score=pretend_score)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    write = Path.write_text

    def write_half(path: Path, text: str, **options: str) -> int:
        write(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match=f"{tmp_path}: No space left on device .*; free some space"):
        compare(request_for(data, tmp_path), train=PretendTrainer(), score=pretend_score)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_a_member_that_should_have_been_compiled_and_was_not_says_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = request_for(
        data, tmp_path, factorizations=("SM", "ADP-T"), overrides=("training.compile=true",)
    )
    trainer = PretendTrainer(uncompiled="SM")
    outcome = compare(request, train=trainer, score=pretend_score)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["training_compiled"] for row in rows] == ["no", "yes"]
    assert [row["members"][0]["compiled"] for row in rows] == [False, True]
    capsys.readouterr()
    print_table(outcome.study)
    said = capsys.readouterr().out
    assert f"SM: {NOT_COMPILED}" in said and f"ADP-T: {NOT_COMPILED}" not in said


def test_a_study_does_not_go_on_with_another_training_text(tmp_path: Path) -> None:
    """The same words as often, in another order: the vocabulary is the same."""
    data, out = make_data(tmp_path, twin=False), tmp_path / "study"
    request = request_for(data, out, factorizations=("SM",))
    compare(request, train=PretendTrainer(), score=pretend_score)
    first = DataFolder.open(data)
    shutil.rmtree(data)
    make_data(tmp_path, twin=False, train=list(reversed(SENTENCES)) * 20)
    second = DataFolder.open(data)
    assert second.vocabulary.hash == first.vocabulary.hash
    trainer = PretendTrainer()
    with pytest.raises(ValueError, match="^SM: .*was trained on the text") as error:
        compare(request, train=trainer, score=pretend_score)
    for folder in (first, second):
        assert folder.split("train").sha256[:12] in str(error.value)
    assert trainer.trained == []


def test_totals_agree_with_evaluate_and_with_the_bins(data: Path, whole_study: WholeStudy) -> None:
    table = json.loads((whole_study.out / "table.json").read_text())
    for row, folder in zip(table["rows"], (data / "bpe", data), strict=True):
        assert row["problem"] == ""
        run = whole_study.run_of(row["model"])
        report = evaluate(run, data=folder, split="test").report()
        assert row["perplexity_test"] == pytest.approx(report["perplexity"])
        for name in ("loss_by_word_frequency", "loss_by_previous_word_frequency"):
            bins = table[name]
            total = sum(b["tokens"] * (b["loss"][row["model"]] or 0) for b in bins)
            words = sum(b["tokens"] for b in bins)
            assert words == report["words"]
            assert total / words == pytest.approx(math.log(row["perplexity_test"]))


def test_the_report_has_cpu_time_device_torch_and_commit(whole_study: WholeStudy) -> None:
    table = json.loads((whole_study.out / "table.json").read_text())
    for row in table["rows"]:
        (member,) = row["members"]
        assert 0 < member["cpu_seconds"] <= member["seconds"] and row["training_CPU_time"] > 0
        versions, facts = member["versions"], table["facts"]
        assert versions["device"] and versions["device"] in facts["devices"]
        for text in (versions["device"], f"torch {versions['packages']['torch']}"):
            assert text in facts["trained with"]
        assert (versions["commit"] or "")[:12] in facts["trained with"]


def test_every_data_folder_is_opened_once_and_every_model_loaded_once(
    data: Path, whole_study: WholeStudy
) -> None:
    """Two members on two folders, each scored on two splits."""
    assert whole_study.opened == (data, data / "bpe")
    runs = [path.parent.parent for path in whole_study.loaded]
    assert runs == [whole_study.run_of("BPE-T"), whole_study.run_of("ADP-T")]


def test_a_second_comparison_trains_and_scores_nothing(
    whole_study: WholeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(whole_study.out, tmp_path / "study")
    files = [path for path in (out / "members").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    loaded = count_loaded(monkeypatch)
    compare(replace(whole_study.request, out=out), device="cpu")
    after = [path for path in (out / "members").rglob("*") if path.is_file()]
    assert before == {path: path.stat().st_mtime_ns for path in after} and loaded == []


@pytest.mark.multi_process
def test_two_processes_train_together_and_one_writes(data: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    arguments = ["--data", data, "--preset", "tiny", "--out", study, "--device", "cpu"]
    arguments += ["--factorizations", "ASM,ADP", *SHORT, "training.tokens_per_update=128"]
    first, second = compare_together(arguments, tmp_path)
    assert first.count("report: ") == 1 and first.count("[2/2] ADP: done") == 1
    assert second == ""
    rows = json.loads((study / "table.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["ASM", "ADP"]
    assert all(row["perplexity_test"] for row in rows)
    for name in ("ASM", "ADP"):
        outputs = sorted(path.name for path in (study / "members" / name / "seed-1").glob("*.txt"))
        assert outputs == ["output-0.txt", "output-1.txt"]
    run, splits = study / "members" / "ADP" / "seed-1", ("valid", "test")
    together = kept_scores(run, DataFolder.open(data), splits)
    alone = score_run(load_run(run), DataFolder.open(data), splits, ScoringOptions(device="cpu"))
    for split in splits:
        assert np.array_equal(together.splits[split].nll, alone.splits[split].nll)


def test_a_full_disk_is_the_problem_of_the_member_that_met_it(data: Path, tmp_path: Path) -> None:
    def score(run: Path, *rest: Any) -> ScoredRun:
        if run.parent.name == "SM":
            raise OSError(errno.ENOSPC, "No space left on device")
        return pretend_score(run, *rest)

    outcome = compare(request_for(data, tmp_path), train=PretendTrainer(), score=score)
    problem = outcome.study.rows[0].problem
    assert "members/SM/seed-1: No space left" in problem and "same command again" in problem


def test_decoders_are_also_timed_word_by_word(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("transformer", "gcnn", "lstm", "qrnn")
    request = Request(data=data, preset="tiny", out=tmp_path, decoders=names, overrides=SHORT)
    study = compare(request, device="cpu").study
    assert [row.label for row in study.rows] == [f"ADP-T {name}" for name in names]
    speeds = [row.mean("streaming_words_per_second") for row in study.rows]
    assert all(speed is not None and speed > 1 for speed in speeds)
    assert study.title.startswith("Decoders compared on")
    print_table(study)
    assert "streaming" in capsys.readouterr().out
    assert "streaming words/s" in (tmp_path / "report.md").read_text()
    # Measured once: the second time nothing is loaded, nor trained.
    again = compare(request, device="cpu", train=PretendTrainer()).study
    assert [row.mean("streaming_words_per_second") for row in again.rows] == speeds
