import errno
import json
import math
import shutil

import numpy as np
import pytest
from fairseq_checkpoints import DICT, GOLDEN, NEWEST, OLDEST, contents, save_args
from typer.testing import CliRunner

import zipflm
import zipflm.cli
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions, evaluate

TEXTS = GOLDEN / "data" / "text"


def invoke(*arguments):
    return CliRunner().invoke(zipflm.cli.app, [*map(str, arguments)], catch_exceptions=False)


def error_of(*arguments):
    with pytest.raises((ValueError, OSError)) as error:
        invoke(*arguments)
    return str(error.value)


def test_import_and_evaluate_from_the_command_line(data, tmp_path):
    result = invoke("import", OLDEST, tmp_path / "run", "--dict", DICT)
    assert "transformer_lm_wiki103" in result.stdout
    done = invoke(
        *("evaluate", tmp_path / "run", "--data", data, "--split", "valid"),
        *("--block", 64, "--context", 48, "--break", "complete", "--json", "--device", "cpu"),
    )
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["perplexity"] == pytest.approx(28.7713, abs=1e-3)
    assert report["perplexity"] == pytest.approx(math.exp(report["nll"]))
    assert report["nll_sum"] == pytest.approx(report["nll"] * report["tokens"])
    wanted = {"tokens": 1545, "words": 1545, "eos": 60, "unk": 53, "unit": "word"}
    wanted |= {"block": 64, "context": 48, "break": "complete", "dtype": "float32"}
    assert {name: report[name] for name in wanted} == wanted
    assert report["seconds"] > 0
    assert report["tokens_per_second"] == pytest.approx(1545 / report["seconds"])
    assert report["checkpoint"] == "update-00000060"


def test_counts_bytes_of_the_normalised_text(data):
    text = (TEXTS / "valid.txt").read_text(encoding="utf-8")
    plain = "".join(" ".join(line.split()) + "\n" for line in text.splitlines())
    assert DataFolder.open(data).split("valid").bytes == len(plain.encode())


def test_prints_the_protocol(run, data):
    result = CliRunner().invoke(
        zipflm.cli.app, ["evaluate", str(run), "--data", str(data), "--device", "cpu"]
    )
    assert result.exit_code == 0
    for part in ("perplexity  23.4", "1,233 tokens", "block 64, context 0, break complete"):
        assert part in result.stdout


def test_bits_per_byte_need_known_words(run, tmp_path):
    known = [line.split(" ")[0] for line in DICT.read_text(encoding="utf-8").splitlines()[:40]]
    (tmp_path / "known.txt").write_text(" ".join([*known, "<unk>"]) + "\n", encoding="utf-8")
    (tmp_path / "unknown.txt").write_text(" ".join([*known, "qqqqqq"]) + "\n", encoding="utf-8")
    good = evaluate(run, text=tmp_path / "known.txt")
    num_bytes = (tmp_path / "known.txt").stat().st_size
    assert good.bits_per_byte == pytest.approx(good.scores.nll_sum / math.log(2) / num_bytes)
    assert f"bits/byte   {good.bits_per_byte:.4f}" in good.as_text()
    bad = evaluate(run, text=tmp_path / "unknown.txt")
    assert bad.bits_per_byte is None and json.loads(bad.as_json())["out_of_vocabulary"] == 1
    assert "not defined: the spelling of 1 unknown" in bad.as_text()


def test_reports_the_checkpoint(run, data, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy") / "checkpoints"
    shutil.copytree(copy / "update-00000060", copy / "update-00000200")
    common = ["evaluate", str(copy.parent), "--data", str(data), "--device", "cpu"]
    for more, name in (([], "update-00000200"), (["--checkpoint", "60"], "update-00000060")):
        result = CliRunner().invoke(zipflm.cli.app, [*common, *more], catch_exceptions=False)
        assert f"checkpoint  {name} of {copy.parent}" in result.stdout
    assert "--checkpoint 7: " in error_of(*common, "--checkpoint", 7)
    assert "--checkpoint last: choose newest, best" in error_of(*common, "--checkpoint", "last")


def test_reports_the_checkpoint_it_read_while_training_continues(run, data, tmp_path, monkeypatch):
    copy = shutil.copytree(run, tmp_path / "copy") / "checkpoints"
    old, new = copy / "update-00000060", copy / "update-00000200"
    verify = DataFolder.verify

    def save_and_verify(self, *splits):
        shutil.copytree(old, new)
        shutil.rmtree(old)
        verify(self, *splits)

    monkeypatch.setattr(DataFolder, "verify", save_and_verify)
    assert evaluate(copy.parent, data=data).checkpoint == old.name


def test_scores_a_text_like_the_split_made_from_it(run, data):
    of_text = evaluate(run, text=TEXTS / "valid.txt")
    of_split = evaluate(run, data=data, split="valid")
    np.testing.assert_array_equal(of_text.scores.nll, of_split.scores.nll)
    assert of_text.num_bytes == of_split.num_bytes


@pytest.fixture(scope="module")
def split_run(tmp_path_factory):
    """The imported model, for raw prose."""
    out = tmp_path_factory.mktemp("split") / "run"
    arguments = ["import", NEWEST, out, "--dict", DICT]
    arguments += ["--words", "words", "--lowercase"]
    CliRunner().invoke(zipflm.cli.app, [*map(str, arguments)], catch_exceptions=False)
    return out


def test_splits_text_into_words_like_the_run(run, split_run, tmp_path):
    known = [line.split(" ")[0] for line in DICT.read_text(encoding="utf-8").splitlines()[:40]]
    known = [word for word in known if word.isalpha() and word.islower()]
    (tmp_path / "split.txt").write_text(" , ".join(known) + " .\n")
    (tmp_path / "raw.txt").write_text(", ".join(known).title() + ".\n")
    of_raw, of_split = (
        evaluate(split_run, text=tmp_path / "raw.txt"),
        evaluate(run, text=tmp_path / "split.txt"),
    )
    np.testing.assert_array_equal(of_raw.scores.nll, of_split.scores.nll)
    assert of_raw.report()["splitting"] == {"rule": "words", "lowercase": True}


def test_bits_per_byte_need_plain_splitting(split_run, tmp_path):
    (tmp_path / "x.txt").write_text("<unk> <unk>\n")
    found = evaluate(split_run, text=tmp_path / "x.txt")
    assert found.out_of_vocabulary == 0 and found.bits_per_byte is None
    assert "not defined: --words words --lowercase does not" in found.as_text()
    assert found.report()["bits_per_byte"] is None


def test_rejects_data_with_another_splitting(run, split_run, data):
    message = error_of("evaluate", split_run, "--data", data)
    assert f"{data}: was prepared with a different splitting rule than" in message
    assert message.endswith(f"prepare the text with --vocabulary {split_run}")
    text, out = TEXTS / "test.txt", split_run.parent / "d"
    other = zipflm.prepare(test=text, vocabulary=split_run, out=out)
    evaluate(split_run, data=other)
    assert "a different splitting rule" in error_of("evaluate", run, "--data", other.path)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """An imported subword model with its dictionary, and a text of pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    lines = DICT.read_text(encoding="utf-8").splitlines()
    marked = [line.replace(" ", "@@ ") if n % 3 == 0 else line for n, line in enumerate(lines)]
    (folder / "dict.txt").write_text("\n".join(marked) + "\n", encoding="utf-8")
    words = [line.split(" ")[0] for line in marked]
    text = "\n".join(" ".join([*words[n : n + 7], words[1]]) for n in range(0, 200, 7))
    (folder / "text.txt").write_text(text + "\n", encoding="utf-8")
    arguments = ["import", NEWEST, folder / "run", "--dict", folder / "dict.txt"]
    result = CliRunner().invoke(zipflm.cli.app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize("break_mode", ["none", "complete", "sentence"])
def test_sub_word_models_report_word_perplexity(pieces, break_mode):
    options = ScoringOptions(block=16, break_mode=break_mode)
    report = evaluate(pieces / "run", text=pieces / "text.txt", options=options).report()
    text = (pieces / "text.txt").read_text(encoding="utf-8")
    num_words = len(text.replace("@@ ", "").split()) + text.count("\n")
    assert (report["words"], report["unit"], report["token_unit"]) == (num_words, "word", "bpe")
    assert report["tokens"] == len(text.split()) + text.count("\n") > num_words
    assert report["perplexity"] == pytest.approx(math.exp(report["nll_sum"] / num_words))
    assert report["bytes"] == len(text.replace("@@ ", "").encode())
    assert report["bits_per_byte"] == pytest.approx(
        report["nll_sum"] / math.log(2) / report["bytes"]
    )


@pytest.mark.parametrize("line", ["zzzz@@ {word} {begin} zzzz", "{begin}", "zzzz@@"])
def test_score_counts_words_as_evaluate_does(pieces, tmp_path, line):
    """With unknown pieces, and with lines that end inside a word."""
    words = (pieces / "text.txt").read_text(encoding="utf-8").split()
    begin = next(word for word in words if word.endswith("@@"))
    text = f"{' '.join(words[:5])}\n{line.format(word=words[1], begin=begin)}\n\n{words[1]}\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    report = evaluate(pieces / "run", text=tmp_path / "text.txt").report()
    continued = sum(word.endswith("@@") and word != "zzzz@@" for word in text.split())
    assert report["words"] == len(text.split()) + 4 - continued
    done = invoke(
        *("score", pieces / "run", tmp_path / "text.txt", "--per", "total", "--lines", "running"),
        *("--json", "--device", "cpu"),
    )
    total = json.loads(done.stdout.splitlines()[1])
    assert total["words"] == report["words"]
    assert total["perplexity"] == pytest.approx(report["perplexity"], rel=1e-5)
    scored = zipflm.load(pieces / "run", device="cpu").score(text)
    assert len(scored) == scored.protocol.words == report["words"]


def test_rejects_whole_words_for_a_sub_word_model_without_codes(pieces, tmp_path):
    lines = (pieces / "dict.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split(" ")[0].removesuffix("@@") for line in lines]
    (tmp_path / "words.txt").write_text(" ".join(words[:40]) + "\n", encoding="utf-8")
    message = error_of("evaluate", pieces / "run", "--text", tmp_path / "words.txt")
    assert "no piece of the text ends in @@" in message


def test_rejects_pieces_for_a_run_with_codes(pieces, tmp_path):
    (tmp_path / "codes").write_text("#version: 0.2\nt h\n", encoding="utf-8")
    imported = ("import", NEWEST, tmp_path / "run", "--dict", pieces / "dict.txt")
    codes = ("--bpe-codes", tmp_path / "codes")
    CliRunner().invoke(zipflm.cli.app, [*map(str, imported + codes)], catch_exceptions=False)
    message = error_of("evaluate", tmp_path / "run", "--text", pieces / "text.txt")
    assert "words of the text end in @@: it is already split" in message
    evaluate(tmp_path / "run", text=TEXTS / "test.txt")


def test_rejects_context_as_long_as_the_block(run, data):
    for context in (64, 65, -1):
        message = error_of("evaluate", run, "--data", data, "--block", 64, "--context", context)
        assert f"--context {context}: must be below block=64" in message


def test_rejects_another_vocabulary(run, tmp_path):
    other = prepare(tmp_path / "other", {"train": [TEXTS / "train.txt"]}, Options(min_count=2))
    message = error_of("evaluate", run, "--data", other.path, "--split", "train")
    assert f"{other.path}: was prepared with a different vocabulary than {run}" in message


def test_rejects_a_damaged_split(run, data, tmp_path):
    shutil.copytree(data, tmp_path / "d")
    path = tmp_path / "d" / "test.tokens"
    whole = bytearray(path.read_bytes())
    whole[200] ^= 1
    path.write_bytes(whole)
    assert "test.tokens: damaged" in error_of("evaluate", run, "--data", tmp_path / "d")
    evaluate(run, data=tmp_path / "d", split="valid")


def test_rejects_a_text_on_one_line(run, tmp_path):
    (tmp_path / "text.txt").write_text("a b " * 10_000)
    message = error_of("evaluate", run, "--text", tmp_path / "text.txt", "--break", "complete")
    assert f"{tmp_path / 'text.txt'}: has a line of 20,001 tokens" in message
    assert "use --break none" in message


def test_explains_a_full_temporary_disk(run, monkeypatch):
    def token_writer(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("zipflm.data.prepare.token_writer", token_writer)
    message = error_of("evaluate", run, "--text", TEXTS / "test.txt")
    assert "No space left on device" in message and "TMPDIR" in message and "--out" not in message


def test_rejects_a_missing_split(run, data):
    assert "no train split" in error_of("evaluate", run, "--data", data, "--split", "train")


def test_rejects_a_text_without_words(run, tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n")
    assert "no word" in error_of("evaluate", run, "--text", tmp_path / "blank.txt")
    (tmp_path / "empty.txt").touch()
    assert "empty" in error_of("evaluate", run, "--text", tmp_path / "empty.txt")


def test_a_file_is_not_a_run(run, data):
    weights = next(run.rglob("weights.safetensors"))
    assert "no checkpoints found" in error_of("evaluate", weights, "--data", data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "data, text: give either a data folder"),
        (("--text", "x", "--data", "y"), "data, text: give either a data folder"),
        (("--text", "x", "--break", "eos"), "--break 'eos': choose from none, complete, sentence"),
        (("--text", "x", "--break", ""), "--break '': choose from none, complete, sentence"),
        (("--text", "x", "--dtype", "int8"), "--dtype 'int8': choose from"),
        (("--text", "x", "--batch-tokens", "10"), "--batch-tokens 10: must hold at least one"),
        (("--text", "x", "--block", "0"), "--block 0: must be at least 1"),
        (("--text", "x", "--split", "test"), "--split test: only for a data folder"),
        (("--data", "x", "--split", "nope"), "--split nope: choose from train, valid, test"),
        (("--text", "x", "--device", "abacus"), "--device abacus: choose cpu, cuda"),
        (("--text", "absent.txt"), "absent.txt: no such file"),
    ],
)
def test_rejects_bad_options(run, arguments, message):
    assert message in error_of("evaluate", run, *arguments)


def test_bad_input_gives_one_line_and_status_2(data, tmp_path, monkeypatch, capsys):
    whole = contents()
    save_args(
        tmp_path / "gelu.pt", whole["cfg"]["model"] | {"activation_fn": "gelu"}, whole["model"]
    )
    (tmp_path / "cut.pt").write_bytes(NEWEST.read_bytes()[:1000])
    names = whole["model"] | {"decoder.a\nb\x1b[2J": whole["model"]["decoder.version"]}
    save_args(tmp_path / "names.pt", whole["cfg"]["model"], names)
    for name, message in (
        ("gelu.pt", "activation_fn='gelu'"),
        ("cut.pt", "truncated, damaged"),
        ("names.pt", r"unknown weights: 'decoder.a\nb\x1b[2J"),
    ):
        arguments = ["import", tmp_path / name, tmp_path / "run", "--dict", DICT]
        monkeypatch.setattr("sys.argv", ["zipflm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            zipflm.cli.main()
        out, err = capsys.readouterr()
        assert (exit.value.code, out) == (2, "")
        assert message in err and len(err.splitlines()) == 1
        assert not (tmp_path / "run").exists()
