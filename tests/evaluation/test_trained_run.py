"""Evaluation of trained runs, with words and with subwords."""

import json
import math

import pytest
from fairseq_checkpoints import GOLDEN

import zipflm
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.presets.recipes import resolve
from zipflm.training.trainer import train

TEXTS = GOLDEN / "data" / "text"
CHANGES = ["training.max_updates=2", "training.dtype=float32", "training.tokens_per_update=256"]
CHANGES += [
    "batches.block=64",
    "batches.tokens=256",
    "batches.eval_block=64",
    "decoder.num_layers=1",
]


@pytest.fixture(scope="module", params=[None, 50], ids=["words", "subwords"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    texts = {split: [TEXTS / f"{split}.txt"] for split in ("train", "valid")}
    data = prepare(folder / "data", texts, Options(bpe=request.param))
    name = "tiny/SM-T" if request.param is None else "tiny/BPE-T"
    config = resolve(name, "paper", CHANGES, len(data.vocabulary))
    assert train(config, data, folder / "run", device="cpu")
    return folder


def test_agrees_with_validation_during_training(trained):
    options = ScoringOptions(device="cpu")
    report = evaluate(
        trained / "run", data=trained / "data", split="valid", options=options
    ).report()
    state = (trained / "run/checkpoints/update-00000002/state.json").read_text()
    valid = json.loads(state)["valid"]
    assert report["perplexity"] == pytest.approx(valid["perplexity"], rel=1e-5)
    assert report["words"] == valid["words"]


def test_splits_raw_text_like_the_data(trained):
    of_text = evaluate(trained / "run", text=TEXTS / "valid.txt").report()
    of_split = evaluate(trained / "run", data=trained / "data", split="valid").report()
    same = ("nll_sum", "tokens", "words", "bytes", "token_unit", "unk")
    assert {name: of_text[name] for name in same} == {name: of_split[name] for name in same}


def test_rejects_text_with_other_pieces(trained, tmp_path):
    checkpoint = trained / "run/checkpoints/update-00000002"
    if not (checkpoint / "bpe.codes").exists():
        pytest.skip("words are not split")
    given = {"vocabulary": checkpoint / "vocabulary.txt", "bpe_codes": checkpoint / "bpe.codes"}
    advice = f"--vocabulary {trained / 'run'}"
    texts = {"test": [TEXTS / "test.txt"]}
    whole = prepare(tmp_path / "whole", texts, Options(vocabulary=given["vocabulary"]))
    with pytest.raises(ValueError, match="different BPE codes") as error:
        evaluate(trained / "run", data=whole.path)
    assert advice in str(error.value)
    lines = given["bpe_codes"].read_text().splitlines()
    (tmp_path / "codes").write_text("\n".join(lines[:-5]) + "\n")
    other = prepare(tmp_path / "other", texts, Options(**given | {"bpe_codes": tmp_path / "codes"}))
    with pytest.raises(ValueError, match="different BPE codes") as error:
        evaluate(trained / "run", data=other.path)
    assert advice in str(error.value)


def test_error_for_another_vocabulary_has_the_remedy(trained, tmp_path):
    run, text = trained / "run", TEXTS / "test.txt"
    other = prepare(tmp_path / "other", {"train": [text]}, Options(min_count=1))
    with pytest.raises(ValueError, match=f"prepare the text with --vocabulary {run}$"):
        evaluate(run, data=other.path, split="train")
    right = zipflm.prepare(test=text, vocabulary=run, out=tmp_path / "right")
    assert evaluate(run, data=right).scores.perplexity > 1


def test_word_count_is_the_same_for_words_and_sub_words(trained):
    options = ScoringOptions(block=32, context=16, break_mode="none")
    report = evaluate(trained / "run", text=TEXTS / "valid.txt", options=options).report()
    assert report["words"] == 1545
    assert report["perplexity"] == pytest.approx(math.exp(report["nll_sum"] / 1545))
