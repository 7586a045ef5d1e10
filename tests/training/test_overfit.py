import pytest
from training_runs import reports

from zipflm.presets import FACTORIZATIONS
from zipflm.presets.recipes import resolve
from zipflm.training.trainer import train

OVERRIDES = [
    "training.max_updates=65",
    "training.report_every=10",
    "training.optimizer.matrix_lr=0.02",
    "training.optimizer.table_lr=0.03",
    "training.optimizer.lr=0.02",
    "decoder.dropout=0",
    "batches.block=32",
    "batches.tokens=2048",
    "training.tokens_per_update=2048",
]
LONGER = "training.max_updates=100"  # for models with few parameters
EXTRA = {
    "BPE-T": [LONGER],
    **{name: ["output.tail_dropout=0"] for name in ("ASM", "ADP")},
    # The words are short; wider windows would only contain padding.
    "CNN": [LONGER, "output.tail_dropout=0", "input.max_bytes=8"],
    "ADP-T": [LONGER, "output.tail_dropout=0"],
}


@pytest.mark.slow
@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_overfits_200_sentences(factorization, word_data, bpe_data, tmp_path):
    data = bpe_data if factorization.startswith("BPE") else word_data
    overrides = OVERRIDES + EXTRA.get(factorization, [])
    config = resolve(f"tiny/{factorization}", "modern", overrides, len(data.vocabulary))
    assert train(config, data, tmp_path / "run", device="cpu")
    losses = [report.loss for report in reports(tmp_path / "run")]
    assert losses[0] > 3
    assert losses[-1] < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["gcnn", "lstm", "qrnn"])
def test_every_decoder_overfits_200_sentences(decoder, word_data, tmp_path):
    overrides = [*OVERRIDES, "training.max_updates=300", "output.tail_dropout=0"]
    config = resolve(f"tiny/ADP-T/{decoder}", "modern", overrides, len(word_data.vocabulary))
    assert train(config, word_data, tmp_path / "run", device="cpu")
    losses = [report.loss for report in reports(tmp_path / "run")]
    assert losses[0] > 3
    assert losses[-1] < 0.2
