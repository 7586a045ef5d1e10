"""Train the bundled model: `zipflm.load("state-of-the-union")`.

    python runs/state_of_the_union.py WORK

Prepares the bundled corpus, trains ADP-T on it (minutes on a GPU), writes the weights as float16 to
src/zipflm/models/state-of-the-union, and writes the model card with the measured perplexity. The
data folder and the run are kept in WORK; run the script again to continue.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import zipflm
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import MODELS, RunFolder, write_imported

NAME = "state-of-the-union"
SETTINGS = {
    "decoder.num_layers": 5,
    "decoder.num_heads": 6,
    "decoder.ffn_dim": 704,
    "decoder.dropout": 0.2,
    "decoder.input_residual": True,
    "decoder.value_residual": True,
    "decoder.attention_gate": True,
    "batches.block": 256,
    "batches.tokens": 8192,
    "batches.eval_block": 256,
    "batches.eval_context": 128,
    "training.max_updates": 5000,
    "training.tokens_per_update": 8192,
    "training.optimizer.matrix_lr": 0.002,
    "training.optimizer.table_lr": 0.004,
    "training.optimizer.lr": 0.0015,
    "training.optimizer.beta2": 0.99,
    "training.optimizer.weight_decay": 0.3,
    "training.optimizer.matrix_weight_decay": 0.3,
    "training.dtype": "bfloat16",
    "training.compile": True,
    "training.report_every": 500,
    "training.validate_every": 1000,
    "training.validate_share": 0.3,
    "training.checkpoint_every": 0,
}
CARD = """# State of the Union

A word-level language model of the addresses of US presidents, 1790 to 2021: {parameters}
parameters in float16, a vocabulary of {words} ids, and adaptive input and softmax layers that
share weights (ADP-T). It comes with zipflm and was trained by `runs/state_of_the_union.py`:
{updates} updates of {tokens} tokens on the training split of the bundled corpus (words split from
punctuation, capitals kept, words that occur fewer than three times replaced by `<unk>`), on
{device} with torch {torch}.

The perplexity per word, with `</s>` and `<unk>` counted as words, is measured with the float16
weights in windows of {block} tokens, of which {context} are context:

| split | perplexity | words |
| --- | ---: | ---: |
{rows}

It generates text in the style of these speeches and knows nothing else. The texts are works of the
United States government, in the public domain.
"""


def main(work: Path) -> None:
    data, run, out = work / "data", work / "run", MODELS / NAME
    if not data.exists():
        zipflm.prepare(corpus=NAME, words="words", out=data)
    trained = zipflm.train("small/ADP-T", SETTINGS, data=data, out=run, resume_if_any=True)
    pack(Path(trained), out)
    (out / "README.md").write_text(card(out, data, RunFolder(run)), encoding="utf-8")


def pack(run: Path, out: Path) -> None:
    """Write the newest checkpoint without its optimizer, in half precision."""
    checkpoint = RunFolder(run).choose("newest")
    contents = Contents(
        weights={name: tensor.half() for name, tensor in checkpoint.weights().items()},
        optimizer={},
        state=checkpoint.state(),
        config=checkpoint.config(),
        vocabulary=checkpoint.vocabulary(),
        codes=None,
        splitting=checkpoint.splitting(),
    )
    shutil.rmtree(out, ignore_errors=True)
    write_imported(out, contents)


def card(packed: Path, data: Path, run: RunFolder) -> str:
    config, versions = run.config(), run.versions()
    assert versions is not None
    rows = []
    for split in ("valid", "test"):
        result = zipflm.evaluate(packed, data=data, split=split, device="cpu")
        rows.append(f"| {split} | {result.perplexity:.2f} | {result.scores.protocol.words:,} |")
    return CARD.format(
        parameters=f"{config.num_params():,}",
        words=f"{config.vocab_size:,}",
        updates=f"{config.training.max_updates:,}",
        tokens=f"{config.training.tokens_per_update:,}",
        device=versions.device,
        torch=versions.packages["torch"],
        block=config.batches.eval_block,
        context=config.batches.eval_context,
        rows="\n".join(rows),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
