"""The commands `zipflm train` and `zipflm report --curves`."""

import json
import math
import shutil

import pytest
import torch
from training_runs import SMALL, config_of, reports, run, validations
from typer.testing import CliRunner

from zipflm import cli
from zipflm.config import Config
from zipflm.runs.folder import RunFolder
from zipflm.settings import from_dict
from zipflm.training import trainer

RUNNER = CliRunner()


def train(data, out, *more, preset="tiny/ADP-T"):
    arguments = ["train", preset, "--data", str(data.path), "--out", str(out), "--device", "cpu"]
    return RUNNER.invoke(cli.app, [*arguments, *SMALL, *more])


def main(monkeypatch, capsys, *arguments):
    """Exit status and stderr of the entry point."""
    monkeypatch.setattr("sys.argv", ["zipflm", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code, capsys.readouterr().err


def test_trains_and_writes_all_files(word_data, tmp_path):
    out = tmp_path / "run"
    result = train(word_data, out, "training.max_updates=10", "training.validate_every=5")
    assert result.exit_code == 0, result.output
    assert "2,864 parameters" in result.output and "decoder.layers" in result.output
    assert "128 tokens per update = 1 device(s) x 64 tokens x 2 accumulated" in result.output
    config = from_dict(Config, json.loads((out / "config.json").read_text()))
    assert config == config_of(word_data, "training.max_updates=10", "training.validate_every=5")
    versions = json.loads((out / "versions.json").read_text())
    assert torch.__version__.startswith(versions["packages"]["torch"])
    assert versions["vocabulary"] == word_data.vocabulary.hash
    assert versions["text"] == word_data.split("train").sha256
    assert [report.update for report in reports(out)] == [1, 5, 10]
    assert all(report.loss == report.nats_per_word > 0 for report in reports(out))
    valid = validations(out)
    assert [line.update for line in valid] == [5, 10]
    assert valid[0].words == valid[0].tokens == len(word_data.tokens("valid").ids)
    assert valid[0].blocks == config.batches.eval_blocks
    names = {path.name for path in (out / "checkpoints" / "update-00000010").iterdir()}
    assert names == {
        *("weights.safetensors", "optimizer.safetensors", "state.json", "config.json"),
        *("vocabulary.txt", "checksums.json"),
    }


def test_saves_if_the_reader_of_its_output_exits(word_data, tmp_path, monkeypatch):
    """With `| tee`, Ctrl-C ends tee first."""

    class Closed:
        def isatty(self):
            return False

        def write(self, text):
            if text.startswith("update 3/"):
                raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr("sys.stdout", Closed())
    config = config_of(word_data, "training.max_updates=10", "training.report_every=1")
    assert not trainer.train(config, word_data, tmp_path / "run", device="cpu")
    assert [found.update for found in RunFolder(tmp_path / "run").checkpoints()] == [3]


def test_tokens_per_update_count_whole_blocks(word_data, tmp_path):
    """Two blocks of 25 fit into 64 tokens, or one of 40."""
    blocks = ["batches.block=40", "training.stages=0.5:25", "batches.tokens=64"]
    more = [*blocks, "training.tokens_per_update=200", "training.max_updates=2"]
    result = train(word_data, tmp_path / "run", *more, "training.report_every=1")
    assert result.exit_code == 0, result.output
    assert "200 tokens per update = 1 device(s) x 50 tokens (2 x 25) x 4 acc" in result.output
    assert "200 tokens per update = 1 device(s) x 40 tokens (1 x 40) x 5 acc" in result.output
    first, second = reports(tmp_path / "run")
    assert (first.block, second.block) == (25, 40)
    seen = first.tokens_per_second * first.seconds
    assert seen == pytest.approx(200, rel=0.01)


def test_prints_the_maximum_tokens_of_sentences(word_data, tmp_path):
    mode = ["batches.break_mode=complete", "training.max_updates=1"]
    result = train(word_data, tmp_path / "run", *mode)
    assert "at most 128 tokens per update, padding included, = 1 device" in result.output


def test_sub_words_are_scored_per_word(bpe_data, tmp_path):
    base = [line for line in SMALL if not line.startswith(("input", "output"))]
    arguments = ["train", "tiny/BPE-T", "--data", str(bpe_data.path), "--out", str(tmp_path / "r")]
    more = ["input.dim=16", "output.dim=16", "training.max_updates=2", "--device", "cpu"]
    result = RUNNER.invoke(cli.app, [*arguments, *base, *more])
    assert result.exit_code == 0, result.output
    valid = validations(tmp_path / "r")[-1]
    assert valid.words < valid.tokens == len(bpe_data.tokens("valid").ids)
    assert valid.nats_per_word == pytest.approx(valid.nats_per_token * valid.tokens / valid.words)
    assert valid.perplexity == pytest.approx(math.exp(valid.nats_per_word))
    assert (tmp_path / "r" / "checkpoints" / "update-00000002" / "bpe.codes").is_file()


BAD = {
    "training.max_update=3": "did you mean training.max_updates",
    "training.optimizer=Adam": "choose Nesterov, AdamW, Muon",
    "training.dtype=int8": "expected float32, bfloat16 or float16",
    "batches.tokens=96": "use training.tokens_per_update=96",
    "batches.block=24": "process at once in blocks of 24",
    "batches.block=56": "use training.tokens_per_update=112",
    "training.stages=0.5:12": "use training.tokens_per_update=960",  # multiple of 60 and 64
    "training.stages=0.5:128": "exceeds batches.tokens=64",
    "training.max_updates=0": "must be at least 1",
    "training.stages=0.9:8,0.5:16": "increasing ends",
}


@pytest.mark.parametrize("override", BAD)
def test_bad_overrides_exit_with_status_2(word_data, tmp_path, monkeypatch, capsys, override):
    arguments = ["train", "tiny/ADP-T", "--data", word_data.path, "--out", tmp_path / "run"]
    code, error = main(monkeypatch, capsys, *arguments, "--device", "cpu", *SMALL, override)
    assert code == 2
    assert BAD[override] in error
    assert not (tmp_path / "run").exists()


def test_rejects_data_with_another_unit(word_data, tmp_path, monkeypatch, capsys):
    arguments = ["train", "tiny/BPE", "--data", word_data.path, "--out", tmp_path / "run"]
    code, error = main(monkeypatch, capsys, *arguments)
    assert code == 2 and "prepare a folder with --bpe" in error


def test_rejects_a_vocabulary_too_small_for_the_bands(word_data, tmp_path, monkeypatch, capsys):
    arguments = ["wikitext-103/ADP-T", "--data", word_data.path, "--out", tmp_path / "run"]
    code, error = main(monkeypatch, capsys, "train", *arguments)
    assert code == 2
    assert f"vocab_size={len(word_data.vocabulary)}" in error and "input.cutoffs" in error


def test_rejects_a_missing_gpu(word_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["tiny/ADP-T", "--data", word_data.path, "--out", tmp_path / "run"]
    code, error = main(monkeypatch, capsys, "train", *arguments, "--device", "cuda")
    assert code == 2 and "--device cuda: not available here; use another device" in error


def test_rejects_a_folder_with_another_run(word_data, tmp_path, monkeypatch, capsys):
    run(word_data, tmp_path / "run", "training.max_updates=1")
    arguments = ["tiny/ADP", "--data", word_data.path, "--out", tmp_path / "run"]
    code, error = main(monkeypatch, capsys, "train", *arguments)
    assert code == 2 and "run of tiny/ADP-T" in error and "run of tiny/ADP, choose" in error
    code, error = main(monkeypatch, capsys, "train", *arguments, "--resume")
    assert code == 2 and "tiny/ADP-T" in error


def test_report_draws_several_runs_into_one_figure(word_data, tmp_path):
    run(word_data, tmp_path / "a", "training.max_updates=6", "training.validate_every=3")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    picture = tmp_path / "curves.svg"
    runs = [str(tmp_path / name) for name in ("a", "b")]
    result = RUNNER.invoke(cli.app, ["report", *runs, "--curves", str(picture), "--x", "seconds"])
    assert result.exit_code == 0 and result.output == f"{picture}\n"
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(("requested", "expected"), [([], "float32"), (["bfloat16"], "bfloat16")])
def test_default_precision_on_a_cpu_is_float32(word_data, tmp_path, requested, expected):
    more = [f"training.dtype={dtype}" for dtype in requested]
    small = ["training.compile=false", "training.max_updates=1", "training.schedule=CosineCycles"]
    result = train(word_data, tmp_path, *small, *more, preset="wikitext-2/ADP-T")
    assert result.exit_code == 0, result.output
    assert RunFolder(tmp_path).config().training.dtype == expected
