"""Studies from start to end: order, resuming, failures and output, mostly with a fake trainer."""

import errno
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies.study_runs import (
    SENTENCES,
    SHORT,
    FakeTrainer,
    compare_together,
    count_loaded,
    fake_score,
    make_data,
    request_for,
    run_study,
)

from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.runs.load import load_run
from zipflm.storage import sole_writer
from zipflm.studies.compare import compare
from zipflm.studies.members import ScoredRun, WordScores, saved_scores, score_run
from zipflm.studies.progress import print_table
from zipflm.studies.study import NOT_COMPILED


def test_trains_scores_and_reports_members_once(data, tmp_path, capsys):
    trainer = FakeTrainer()
    outcome = run_study(data, tmp_path, trainer)
    assert trainer.trained == ["SM", "BPE", "ADP-T"]
    assert outcome.page == tmp_path / "report.html" and outcome.page.is_file()
    output = capsys.readouterr().out
    assert "[1/3] SM: training" in output
    assert "[3/3] ADP-T: done, update 200/200, validation perplexity 30.00, 2.0 s" in output
    assert "a line of the trainer" not in output
    assert "a line of the trainer" in (tmp_path / "members/SM/seed-1/output-0.txt").read_text()
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["SM", "BPE", "ADP-T"]
    assert rows[0]["members"][0]["checkpoint"] == "update-00000200"
    assert rows[0]["training_time"] == 2.0 and rows[0]["training_memory"] == 9
    # 1 token/s while the model is compiled, then 18 and 20.
    assert rows[0]["training_tokens_per_s"] == pytest.approx(18)
    again = FakeTrainer()
    run_study(data, tmp_path, again, overrides=("training.report_every=7",))
    assert again.trained == []


def test_resumes_an_interrupted_study(data, tmp_path, capsys):
    first = FakeTrainer(stops_at="BPE")
    outcome = run_study(data, tmp_path, first)
    output = capsys.readouterr().out
    assert "BPE: stopped" in output and "ADP-T: not trained" in output and "failed" not in output
    assert outcome.stopped and first.trained == ["SM", "BPE"]
    problems = [row.problem for row in outcome.study.rows]
    assert problems[0] == ""
    assert problems[1].startswith("interrupted") and problems[2].startswith("not trained")
    report = tmp_path / "report.md"
    assert report.read_text().startswith(
        "# Unfinished: 1 of 3 models done; missing: BPE and ADP-T\n"
    )
    second = FakeTrainer()
    outcome = run_study(data, tmp_path, second)
    assert "Unfinished" not in report.read_text()
    assert second.trained == ["BPE", "ADP-T"] and not outcome.stopped
    assert len(outcome.study.finished) == 3


def test_diverged_member_does_not_stop_the_others(data, tmp_path, capsys):
    trainer = FakeTrainer(diverges="SM")
    outcome = run_study(data, tmp_path, trainer)
    assert [bool(row.problem) for row in outcome.study.rows] == [True, False, False]
    assert "the loss is not finite" in (tmp_path / "report.html").read_text()
    print_table(outcome.study)
    assert "SM: the loss is not finite" in capsys.readouterr().out


def test_no_report_if_all_members_fail(data, tmp_path):
    outcome = run_study(data, tmp_path, FakeTrainer(diverges="SM"), factorizations=("SM",))
    assert outcome.failures == {"SM": "the loss is not finite"}
    assert outcome.page is None and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("override", ["decoder.num_layers=1", "training.max_updates=100"])
def test_rejects_a_study_trained_with_other_settings(data, tmp_path, override):
    run_study(data, tmp_path)
    with pytest.raises(ValueError, match="^SM: "):
        run_study(data, tmp_path, overrides=(override,))


def test_rejects_a_long_line_in_the_test_split(tmp_path):
    make_data(tmp_path, twin=False)
    (tmp_path / "test.txt").write_text("ba " * 20_000)
    texts = {name: [tmp_path / f"{name}.txt"] for name in ("train", "valid", "test")}
    data = prepare(tmp_path / "long", texts, Options(min_count=1)).path
    trainer, only = FakeTrainer(), {"factorizations": ("SM",)}
    with pytest.raises(ValueError, match="test split: has a line of .*eval_break_mode=none"):
        run_study(data, tmp_path / "study", trainer, **only)
    assert trainer.trained == []
    whole = ("batches.eval_break_mode=none",)
    run_study(data, tmp_path / "study", trainer, overrides=whole, **only)


def test_retrains_a_member_with_a_damaged_checkpoint(data, tmp_path):
    run_study(data, tmp_path)
    (checkpoint,) = (tmp_path / "members/BPE/seed-1/checkpoints").iterdir()
    (checkpoint / "weights.safetensors").write_bytes(b"cut sho")
    again = FakeTrainer()
    run_study(data, tmp_path, again)
    assert again.trained == ["BPE"]


def test_infinite_perplexity_is_a_problem_of_the_member(data, tmp_path):
    def score(run, *rest):
        found = fake_score(run, *rest)
        if run.parent.name == "SM" and run.name == "seed-2":
            bad = {s: WordScores(w.nll * 1e20, w.protocol) for s, w in found.splits.items()}
            return ScoredRun(found.checkpoint, bad)
        return found

    outcome = run_study(data, tmp_path, score=score, seeds=2)
    assert outcome.study.rows[0].problem.startswith("seed 2: training diverged")
    assert outcome.page.is_file() and len(outcome.study.finished) == 3


def test_full_disk_keeps_the_previous_report(data, tmp_path, monkeypatch):
    run_study(data, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    write = Path.write_text

    def write_half(path, text, **options):
        write(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match=f"{tmp_path}: No space left on device .*; free some space"):
        run_study(data, tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_reports_members_that_ran_uncompiled(data, tmp_path, capsys):
    trainer, overrides = FakeTrainer(uncompiled="SM"), ("training.compile=true",)
    kinds = ("SM", "ADP-T")
    outcome = run_study(data, tmp_path, trainer, factorizations=kinds, overrides=overrides)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["members"][0]["compiled"] for row in rows] == [False, True]
    capsys.readouterr()
    print_table(outcome.study)
    output = capsys.readouterr().out
    assert f"SM: {NOT_COMPILED}" in output and f"ADP-T: {NOT_COMPILED}" not in output


def test_rejects_another_training_text(tmp_path):
    """The words are in another order, but the vocabulary is the same."""
    data, out = make_data(tmp_path, twin=False), tmp_path / "study"
    run_study(data, out, factorizations=("SM",))
    first = DataFolder.open(data)
    shutil.rmtree(data)
    make_data(tmp_path, twin=False, train=list(reversed(SENTENCES)) * 20)
    second = DataFolder.open(data)
    assert second.vocabulary.hash == first.vocabulary.hash
    trainer = FakeTrainer()
    with pytest.raises(ValueError, match="^SM: .*was trained on the text") as error:
        run_study(data, out, trainer, factorizations=("SM",))
    for folder in (first, second):
        assert folder.split("train").sha256[:12] in str(error.value)
    assert trainer.trained == []


def test_totals_match_evaluate_and_the_bins(data, whole_study):
    table = json.loads((whole_study.out / "table.json").read_text())
    for row, folder in zip(table["rows"], (data / "bpe", data), strict=True):
        assert row["problem"] == ""
        run = whole_study.run_of(row["model"])
        options = ScoringOptions(device="cpu")
        report = evaluate(run, data=folder, split="test", options=options).report()
        assert row["perplexity_test"] == pytest.approx(report["perplexity"])
        for name in ("loss_by_word_frequency", "loss_by_previous_word_frequency"):
            bins = table[name]
            total = sum(b["tokens"] * (b["loss"][row["model"]] or 0) for b in bins)
            words = sum(b["tokens"] for b in bins)
            assert words == report["words"]
            assert total / words == pytest.approx(math.log(row["perplexity_test"]))


def test_the_report_has_cpu_time_device_torch_and_commit(whole_study):
    table = json.loads((whole_study.out / "table.json").read_text())
    for row in table["rows"]:
        (member,) = row["members"]
        assert 0 < member["cpu_seconds"] <= member["seconds"] and row["training_CPU_time"] > 0
        versions, metadata = member["versions"], table["protocol"]
        assert versions["device"] and versions["device"] in metadata["devices"]
        for text in (versions["device"], f"torch {versions['packages']['torch']}"):
            assert text in metadata["trained with"]
        assert (versions["commit"] or "")[:12] in metadata["trained with"]


def test_opens_data_and_loads_models_once(data, whole_study):
    """Two members on two folders, each scored on two splits."""
    assert whole_study.opened == (data, data / "bpe")
    runs = [path.parent.parent for path in whole_study.loaded]
    assert runs == [whole_study.run_of("BPE-T"), whole_study.run_of("ADP-T")]


def test_second_comparison_trains_and_scores_nothing(whole_study, tmp_path, monkeypatch):
    out = shutil.copytree(whole_study.out, tmp_path / "study")
    files = [path for path in (out / "members").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    loaded = count_loaded(monkeypatch)
    compare(replace(whole_study.request, out=out), device="cpu")
    after = [path for path in (out / "members").rglob("*") if path.is_file()]
    assert before == {path: path.stat().st_mtime_ns for path in after} and loaded == []


@pytest.mark.multi_process
def test_two_processes_train_together(data, tmp_path):
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
    together = saved_scores(run, DataFolder.open(data), splits)
    alone = score_run(load_run(run), DataFolder.open(data), splits, ScoringOptions(device="cpu"))
    for split in splits:
        assert np.array_equal(together.splits[split].nll, alone.splits[split].nll)


def test_full_disk_is_a_problem_of_the_member(data, tmp_path):
    def score(run, *rest):
        if run.parent.name == "SM":
            raise OSError(errno.ENOSPC, "No space left on device")
        return fake_score(run, *rest)

    outcome = run_study(data, tmp_path, score=score)
    problem = outcome.study.rows[0].problem
    assert "members/SM/seed-1: No space left" in problem and "run the same command again" in problem


def test_decoder_studies_measure_streaming_speed(data, tmp_path, capsys):
    names = ("transformer", "gcnn", "lstm", "qrnn")
    request = request_for(data, tmp_path, decoders=names, overrides=SHORT, memory=("cache:5",))
    study = compare(request, device="cpu").study
    assert [row.label for row in study.rows[::2]] == [f"ADP-T {name}" for name in names]
    speeds = [row.mean("streaming_words_per_second") for row in study.rows]
    assert all(speed is not None and speed > 1 for speed in speeds[::2])
    assert speeds[1::2] == [None] * 4  # not measured with a memory
    assert study.title.startswith("Decoders compared on")
    print_table(study)
    assert "streaming" in capsys.readouterr().out
    assert "streaming words/s" in (tmp_path / "report.md").read_text()
    # Measured only once.
    again = compare(request, device="cpu").study
    assert [row.mean("streaming_words_per_second") for row in again.rows] == speeds


def test_rejects_a_second_study_in_the_same_folder(data, tmp_path):
    trainer = FakeTrainer()
    # The lock is checked before the contents, which another process may be changing.
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table.json").write_text("damaged")
    with sole_writer(tmp_path / "study"):
        with pytest.raises(ValueError, match=f"study: in use by process {os.getpid()} on "):
            run_study(data, tmp_path / "study", trainer)
    assert trainer.trained == []


def test_study_locks_its_folder(data, tmp_path):
    out, tried = tmp_path / "study", []

    def score(*arguments):
        with pytest.raises(ValueError, match="in use by"), sole_writer(out):
            pytest.fail("not locked")
        tried.append("while scoring")
        return fake_score(*arguments)

    run_study(data, out, score=score, factorizations=("SM",))
    assert tried == ["while scoring"]
    assert not list(out.rglob(".*"))


def test_removes_leftovers_of_a_killed_study(data, tmp_path):
    out = tmp_path / "study"
    run_study(data, out, factorizations=("SM",))
    for name in (".lock", ".unfinished-of-another-release.html"):
        (out / name).write_text("{")
    run_study(data, out, factorizations=("SM",))
    assert not list(out.rglob(".*"))
