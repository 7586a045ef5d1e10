"""Studies with the real trainer and evaluator, at toy size; also with several processes."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from comparison.studies import change_facts, make_data
from safetensors.torch import load_file, save_file

from zipflm.comparison.analyse import ablate, analyse
from zipflm.comparison.compare import compare
from zipflm.comparison.members import score_once
from zipflm.comparison.plan import Request
from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.files import file_hash

SHORT = (
    "training.max_updates=3",
    "training.tokens_per_update=64",
    "batches.tokens=64",
    "batches.block=16",
    "batches.eval_block=16",
    "decoder.num_layers=1",
    "training.report_every=1",
)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipflm.analysis.report.save_figures", lambda study, folder: [])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def study(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of a word and a sub-word model."""
    out = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zipflm.analysis.report.save_figures", lambda study, folder: [])
        request = Request(
            data=data,
            preset="tiny",
            out=out,
            factorizations=("BPE-T", "ADP-T"),
            recipe="modern",
            overrides=SHORT,
        )
        compare(request, device="cpu")
    return out


def test_totals_agree_with_evaluate_and_with_the_bins(data: Path, study: Path) -> None:
    table = json.loads((study / "table.json").read_text())
    for row, folder in zip(table["rows"], (data / "bpe", data), strict=True):
        run = study / "members" / row["model"] / "seed-1"
        assert row["problem"] == ""
        report = evaluate(run, data=folder, split="test").report()
        assert row["perplexity_test"] == pytest.approx(report["perplexity"])
        for name in ("loss_by_word_frequency", "loss_by_previous_word_frequency"):
            bins = table[name]
            total = sum(b["tokens"] * (b["loss"][row["model"]] or 0) for b in bins)
            words = sum(b["tokens"] for b in bins)
            assert words == report["words"]
            assert total / words == pytest.approx(math.log(row["perplexity_test"]))


def test_a_second_comparison_trains_and_scores_nothing(data: Path, study: Path) -> None:
    run = study / "members" / "ADP-T" / "seed-1"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    request = Request(
        data=data,
        preset="tiny",
        out=study,
        factorizations=("BPE-T", "ADP-T"),
        recipe="modern",
        overrides=SHORT,
    )
    compare(request, device="cpu")
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}


def test_any_runs_make_a_report_with_the_table_of_contexts(
    data: Path, study: Path, tmp_path: Path
) -> None:
    runs = [study / "members" / name / "seed-1" for name in ("BPE-T", "ADP-T")]
    found = analyse(runs, data, tmp_path, context_sizes=[0, 8])
    assert [row.label for row in found.rows] == ["BPE-T", "ADP-T"]
    assert [(c.label, c.context) for c in found.contexts] == [
        ("BPE-T", 0),
        ("BPE-T", 8),
        ("ADP-T", 0),
        ("ADP-T", 8),
    ]
    plain = found.rows[1].perplexity["test"].mean
    assert found.contexts[2].perplexity["test"] == pytest.approx(plain)
    assert "| ADP-T | 16 | 16 | 8 |" in (tmp_path / "report.md").read_text()
    assert 'id="context"' in (tmp_path / "report.html").read_text()


def test_a_context_as_long_as_the_block_is_refused(data: Path, study: Path, tmp_path: Path) -> None:
    run = study / "members" / "ADP-T" / "seed-1"
    with pytest.raises(ValueError, match="--context-sizes 16: must leave room"):
        analyse([run], data, tmp_path, context_sizes=[16])


@pytest.mark.parametrize("remains", [0, 1000])
def test_scores_that_are_damaged_are_made_again(data: Path, study: Path, remains: int) -> None:
    run = study / "members" / "ADP-T" / "seed-1"
    folder, options = DataFolder.open(data), ScoringOptions(device="cpu")
    good = score_once(run, folder, ["test"], options).splits["test"]
    kept = run / "scores" / "test.npz"
    kept.write_bytes(kept.read_bytes()[:remains])
    again = score_once(run, folder, ["test"], options).splits["test"]
    assert again.nll.tolist() == good.nll.tolist() and kept.stat().st_size > 1000


def test_scores_of_another_text_or_other_weights_are_not_reused(
    data: Path, study: Path, tmp_path: Path
) -> None:
    run, other, options = tmp_path / "run", tmp_path / "data", ScoringOptions(device="cpu")

    def losses(folder: Path) -> list[float]:
        scored = score_once(run, DataFolder.open(folder), ["valid"], options)
        return list(scored.splits["valid"].nll)

    shutil.copytree(study / "members" / "ADP-T" / "seed-1", run)
    shutil.copytree(data, other)
    valid = losses(data)
    shutil.rmtree(other / "bpe")
    change_facts(other, lambda facts: facts["splits"].update(valid=facts["splits"]["test"]))
    assert len(losses(other)) < len(valid)
    (checkpoint,) = (run / "checkpoints").iterdir()
    weights = load_file(checkpoint / "weights.safetensors")
    save_file({n: t + 1 for n, t in weights.items()}, checkpoint / "weights.safetensors")
    sums = json.loads((checkpoint / "checksums.json").read_text())
    sums["weights.safetensors"] = file_hash(checkpoint / "weights.safetensors")
    (checkpoint / "checksums.json").write_text(json.dumps(sums))
    assert losses(data) != valid


def test_two_runs_of_one_name_are_refused(data: Path, study: Path, tmp_path: Path) -> None:
    run = study / "members" / "ADP-T" / "seed-1"
    with pytest.raises(ValueError, match="another run is called seed-1 as well"):
        analyse([run, run], data, tmp_path)


def test_data_of_another_vocabulary_are_refused(study: Path, tmp_path: Path) -> None:
    from zipflm.data.prepare import Options, prepare

    texts = {split: [tmp_path / f"{split}.txt"] for split in ("train", "test")}
    for (text,) in texts.values():
        text.write_text("some other words\n")
    prepare(tmp_path / "data", texts, Options(min_count=1))
    run = study / "members" / "ADP-T" / "seed-1"
    with pytest.raises(ValueError, match="was trained with the vocabulary"):
        analyse([run], tmp_path / "data", tmp_path / "out")


def test_bands_are_compared_with_the_run_they_start_from(
    data: Path, study: Path, tmp_path: Path
) -> None:
    run = study / "members" / "ADP-T" / "seed-1"
    outcome = ablate(run, data, tmp_path, bands=["4/8/28", "20/20"], tail_dropout=[], device="cpu")
    assert [row.label for row in outcome.study.rows] == [
        "ADP-T",
        "ADP-T bands 4/8/28",
        "ADP-T bands 20/20",
    ]
    assert len(outcome.study.finished) == 3
    assert len({row.first.input for row in outcome.study.rows}) == 3


@pytest.mark.multi_process
def test_two_processes_train_together_and_one_writes(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--master-port=29617", "-m", "zipflm", "compare", "--data", str(data)]
    command += ["--preset", "tiny", "--out", str(tmp_path / "study"), "--device", "cpu"]
    command += ["--factorizations", "ASM,ADP", *SHORT, "training.tokens_per_update=128"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("report: ") == 1
    assert result.stdout.count("[2/2] ADP: done") == 1
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["ASM", "ADP"]
    assert all(row["perplexity_test"] for row in rows)
