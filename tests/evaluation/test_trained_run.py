"""A run that was trained here, sub-words included: evaluation agrees with its own validation."""

import json
import math

import pytest
from fairseq_checkpoints import GOLDEN

from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import Setting, evaluate
from zipflm.recipes import resolve
from zipflm.training.trainer import train

TEXTS = GOLDEN / "data" / "text"
CHANGES = ["training.max_updates=2", "training.precision=float32", "training.tokens_per_update=256"]
CHANGES += [
    "batches.block=64",
    "batches.tokens=256",
    "batches.eval_block=64",
    "decoder.num_layers=1",
]


@pytest.fixture(scope="module", params=[None, 50], ids=["words", "sub-words"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    texts = {split: [TEXTS / f"{split}.txt"] for split in ("train", "valid")}
    data = prepare(folder / "data", texts, Options(bpe=request.param))
    name = "tiny/SM-T" if request.param is None else "tiny/BPE-T"
    config = resolve(name, "paper", CHANGES, len(data.vocabulary))
    assert train(config, data, folder / "run", device="cpu")
    return folder


def test_evaluation_agrees_with_the_validation_of_the_run(trained):
    report = evaluate(trained / "run", data=trained / "data", split="valid").report()
    state = (trained / "run/checkpoints/update-00000002/state.json").read_text()
    valid = json.loads(state)["valid"]
    assert report["perplexity"] == pytest.approx(valid["perplexity"], rel=1e-5)
    assert report["words"] == valid["words"]


def test_raw_text_is_split_as_the_data_was(trained):
    of_text = evaluate(trained / "run", text=TEXTS / "valid.txt").report()
    of_split = evaluate(trained / "run", data=trained / "data", split="valid").report()
    same = ("nll_sum", "tokens", "words", "bytes", "token_unit", "unk")
    assert {name: of_text[name] for name in same} == {name: of_split[name] for name in same}


def test_words_are_the_same_in_number_for_words_and_sub_words(trained):
    setting = Setting(block=32, context=16, break_mode="none")
    report = evaluate(trained / "run", text=TEXTS / "valid.txt", setting=setting).report()
    assert report["words"] == 1545
    assert report["perplexity"] == pytest.approx(math.exp(report["nll_sum"] / 1545))
