"""Models with a constant-size state: joining and leaving rows."""

import pytest
import torch
from numerics import assert_close

from zipflm import LanguageModel, preset
from zipflm.config.model import BY_LABEL
from zipflm.model import initialization
from zipflm.presets.rivals import with_decoder

DECODERS = ["gcnn", "lstm", "qrnn"]


def a_model(name, factorization="ADP-T"):
    torch.manual_seed(1)
    config = with_decoder(preset("tiny", factorization), name)
    spellings = torch.randint(257, (config.vocab_size, 50)) if factorization == "CNN" else None
    return LanguageModel(config, spellings)


@pytest.fixture(params=DECODERS)
def model(request):
    return a_model(request.param).double().eval()


@pytest.mark.parametrize("factorization", BY_LABEL)
@pytest.mark.parametrize("name", DECODERS)
def test_every_factorization_works_with_every_decoder(name, factorization):
    model = a_model(name, factorization)
    assert sum(p.numel() for p in model.parameters()) == model.config.num_params()
    assert initialization.fills(model).keys() == dict(model.named_parameters()).keys()
    words, targets = torch.randint(4, 900, (2, 2, 9))
    model.nll_sum(words, targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_reads_texts_of_different_lengths_together(model):
    texts = [torch.randint(4, 900, (length,)) for length in (5, 2, 5, 9)]
    hidden, states = model.read(texts)
    step = torch.randint(4, 900, (4, 1))
    after = model(step, states)
    for row, text in enumerate(texts):
        alone = model(torch.cat([text, step[row]])[None])[0]
        assert_close(hidden[row], alone[:-1], 1e-10)
        assert_close(after[row, 0], alone[-1], 1e-10)


@torch.no_grad()
def test_rows_join_and_leave(model):
    texts = [torch.randint(4, 900, (length,)) for length in (3, 6, 4)]
    rows = model.new_cache(0, 0)
    rows.join(model.read(texts[:1])[1])
    rows.join(model.read(texts[1:])[1])
    assert rows.drop({1}) == [0, 2] and rows.rows == 2 and rows.empty_full(1) == []
    step = torch.randint(4, 900, (2, 1))
    kept = rows.snapshot()
    hidden = model(step, rows)
    for row, text in enumerate([texts[0], texts[2]]):
        assert_close(hidden[row, 0], model(torch.cat([text, step[row]])[None])[0, -1], 1e-10)
    rows.restore(kept)
    assert torch.equal(model(step, rows), hidden)
    assert_close(model(step[1:], model.read(texts[2:])[1].row(0)), hidden[1:], 1e-10)
    assert rows.drop({0, 1}) == [] and rows.rows == 0
