import pytest
import torch
from golden_files import load
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode

from zipflm import AdaptiveEmbedding, Bands
from zipflm.data.batches import unique_tokens
from zipflm.model.inputs import CharacterEmbedding, FixedEmbedding

BANDS = Bands(vocab_size=100, cutoffs=(10, 40), dim=16, factor=4)


@pytest.mark.parametrize("case", ["same", "proj", "exact"])
def test_adaptive_embedding_matches_published_code(case):
    golden = load("modules/adaptive_input.npz")[case]
    bands = Bands(
        golden["vocab_size"], tuple(golden["cutoff"]), golden["initial_dim"], golden["factor"]
    )
    layer = AdaptiveEmbedding(
        bands, golden["output_dim"], padding_idx=golden["padding_idx"]
    ).double()
    names = {
        f"{kind}.{band}": f"embeddings.{band}.{index}.weight"
        for band in range(bands.num_bands)
        for index, kind in enumerate(("embeddings", "projections"))
    }
    layer.load_state_dict({ours: golden["state_dict"][theirs] for ours, theirs in names.items()})
    output = layer(golden["ids"])
    assert_close(output, golden["output"], 1e-12)
    output.backward(golden["upstream"])
    for ours, theirs in names.items():
        assert_close(layer.get_parameter(ours).grad, golden["grads"][theirs], 1e-10, ours)


def look_up_one(layer, word):
    band = sum(word >= cutoff for cutoff in layer.bands.cutoffs)
    table, projection = layer.band_weights(band)
    return projection @ table[word - layer.bands.edges[band]]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=12))
def test_matches_lookup_word_by_word(words):
    layer = AdaptiveEmbedding(BANDS, 24).double()
    expected = torch.stack([look_up_one(layer, word) for word in words])
    assert_close(layer(torch.tensor(words)), expected, 1e-12)


@pytest.mark.parametrize("words", [[0], [99], [0, 9], [10, 39], [40, 99], [0, 10, 40]])
def test_all_bands_get_gradients(words):
    layer = AdaptiveEmbedding(BANDS)
    layer(torch.tensor(words)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
    touched = torch.cat([table.grad.abs().sum(1) > 0 for table in layer.embeddings])
    assert touched.nonzero().flatten().tolist() == sorted(words)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 1, 4)])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.uint8])
def test_accepts_any_shape_and_integer_dtype(shape, dtype):
    words = torch.randint(100, shape).to(dtype)
    assert AdaptiveEmbedding(BANDS, 24)(words).shape == (*shape, 24)


def test_padding_starts_at_zero():
    layer = AdaptiveEmbedding(BANDS, padding_idx=1)
    assert layer(torch.tensor(1)).abs().max() == 0
    assert (layer.embeddings[1] != 0).all()  # only the head has a padding word


@pytest.mark.parametrize("layer", [AdaptiveEmbedding(BANDS), FixedEmbedding(100, 8, 16)])
@pytest.mark.parametrize("word", [-1, 100])
def test_rejects_ids_outside_the_vocabulary(layer, word):
    with pytest.raises(ValueError, match=f"words={word}: outside the vocabulary of 100 words"):
        layer(torch.tensor([[3, word]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_rejects_non_integer_ids(dtype):
    with pytest.raises(ValueError, match=r"words.dtype=.*integers.*words.long\(\)"):
        AdaptiveEmbedding(BANDS)(torch.zeros(3, dtype=dtype))


def test_rejects_padding_outside_the_head():
    with pytest.raises(ValueError, match="padding_idx=10: must be an id of the head"):
        AdaptiveEmbedding(BANDS, padding_idx=10)


def character_layer(golden):
    spellings = torch.zeros(400, 50, dtype=torch.int16)
    spellings[golden["ids"].flatten()] = golden["chars"].flatten(0, 1).to(torch.int16)
    filters = ((1, 8), (2, 16), (3, 24), (4, 32), (5, 32), (6, 32), (7, 32))
    return CharacterEmbedding(spellings, 20, char_dim=12, filters=filters, highway_layers=2)


def test_character_embedding_matches_published_code():
    golden = load("modules/char_embedder.npz")["highway2"]
    layer = character_layer(golden).double()
    names = {"bytes": "char_embeddings.weight", "symbols": "symbol_embeddings"}
    names |= {name: name for name in golden["state_dict"] if name.startswith(("conv", "proj"))}
    names |= {
        name.replace("layers.", ""): name
        for name in golden["state_dict"]
        if name.startswith("highway")
    }
    layer.load_state_dict({ours: golden["state_dict"][theirs] for ours, theirs in names.items()})
    output = layer(golden["ids"])
    assert_close(output, golden["output"], 1e-12)
    output.backward(golden["upstream"])
    for ours, theirs in names.items():
        assert_close(layer.get_parameter(ours).grad, golden["grads"][theirs], 1e-10, ours)


def test_character_embedding_initialization_matches_published_code():
    torch.manual_seed(0)
    golden = load("modules/char_embedder.npz")["init_stats"]
    spellings = torch.zeros(10, 50, dtype=torch.int16)
    layer = CharacterEmbedding(
        spellings, 256, char_dim=128, filters=((1, 128), (2, 256)), highway_layers=1
    )
    theirs = {
        "bytes": "char_embeddings.weight",
        "symbols": "symbol_embeddings",
        "convolutions.1.weight": "convolutions.1.weight",
        "highway.0.weight": "highway.layers.0.weight",
        "highway.0.bias": "highway.layers.0.bias",
        "projection.weight": "projection.weight",
        "projection.bias": "projection.bias",
    }
    for ours, name in theirs.items():
        parameter = layer.get_parameter(ours)
        assert list(parameter.shape) == golden[name]["shape"]
        # The symbols have only 512 values, hence the tolerance.
        std = parameter.std().item()
        assert std == pytest.approx(golden[name]["std"], rel=0.08, abs=1e-9), ours
        assert parameter.mean().item() == pytest.approx(golden[name]["mean"], abs=0.01), ours


def test_equal_spellings_give_equal_vectors():
    golden = load("modules/char_embedder.npz")["highway2"]
    layer = character_layer(golden)
    layer.spellings_VC[50] = layer.spellings_VC[4]
    vectors = layer(torch.tensor([4, 50, 5]))
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_character_embedding_accepts_empty_and_transposed_batches():
    layer = character_layer(load("modules/char_embedder.npz")["highway2"])
    assert layer(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 20)
    words = torch.randint(400, (2, 5))
    assert_close(layer(words.T), layer(words).transpose(0, 1), 1e-6)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_unique_tokens_give_the_same_vectors_and_gradients(precision):
    layer = character_layer(load("modules/char_embedder.npz")["highway2"])
    layer = layer.double() if precision is None else layer
    words = torch.randint(len(layer.spellings_VC), (3, 40))
    words[:, ::2] = 5
    factors = torch.randn(3, 40, 20)

    def run(inputs):
        layer.zero_grad()
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            hidden = layer(inputs)
        (hidden * factors).sum().backward()
        return hidden, [param.grad.clone() for param in layer.parameters()]

    plain, plain_grads = run(words)
    once, once_grads = run(unique_tokens(words))
    tolerance = 1e-10 if precision is None else 2e-2
    assert once.dtype == plain.dtype
    assert_close(once, plain, tolerance)
    for ours, theirs in zip(once_grads, plain_grads, strict=True):
        assert_close(ours, theirs, tolerance)


SPARSE = {
    "adaptive": lambda sparse: AdaptiveEmbedding(BANDS, 24, padding_idx=1, sparse=sparse),
    "fixed": lambda sparse: FixedEmbedding(100, 16, 16, 1, sparse=sparse),
}


def tables(layer):
    return [p for name, p in layer.named_parameters() if "table" in name or "embeddings" in name]


def sparse_and_dense(kind, words):
    """Both layers after a backward pass on whole numbers, whose sums are exact in any order."""
    layers = [SPARSE[kind](sparse) for sparse in (True, False)]
    layers[1].load_state_dict(layers[0].state_dict())
    assert torch.equal(layers[0](words), layers[1](words))
    for layer in layers:
        for parameter in layer.parameters():
            torch.nn.init.ones_(parameter)
        output = layer(words)
        output.backward(torch.arange(output.numel()).view(output.shape) % 7.0)
    return layers


@settings(max_examples=40)
@given(st.lists(st.integers(0, 99), max_size=30), st.sampled_from(list(SPARSE)))
def test_sparse_gradients_match_dense_ones(words, kind):
    sparse, dense = sparse_and_dense(kind, torch.tensor([words], dtype=torch.int64))
    for ours, theirs in zip(sparse.parameters(), dense.parameters(), strict=True):
        assert torch.equal(ours.grad.to_dense(), theirs.grad)
    named = [table.grad.coalesce().indices()[0] for table in tables(sparse)]
    edges = BANDS.edges if kind == "adaptive" else (0, 100)
    for first, end, rows in zip(edges, edges[1:], named, strict=False):
        inside = {word - first for word in words if first <= word < end and word != 1}
        assert set(rows.tolist()) == (inside or ({0} if words else set()))


@pytest.mark.parametrize("kind", SPARSE)
def test_nonzero_padding_is_returned_but_gets_no_gradient(kind):
    """Imported weights can have a nonzero padding row."""
    sparse, dense = (SPARSE[kind](is_sparse) for is_sparse in (True, False))
    with torch.no_grad():
        tables(sparse)[0][1] = 3.0
    dense.load_state_dict(sparse.state_dict())
    words = torch.tensor([[1, 5, 1]])
    output = sparse(words)
    assert torch.equal(output, dense(words)) and output[0, 0].abs().max() > 0
    output.sum().backward()
    assert tables(sparse)[0].grad.coalesce().indices().tolist() == [[5]]


@pytest.mark.parametrize("kind", SPARSE)
def test_trains_with_sparse_adam(kind):
    layer = SPARSE[kind](True)
    dense = [p for p in layer.parameters() if not any(p is table for table in tables(layer))]
    optimizers = [torch.optim.SparseAdam(tables(layer), lr=0.05)]
    optimizers += [torch.optim.Adam(dense, lr=0.05)] if dense else []
    words, before = torch.tensor([2, 15, 60, 15]), [t.detach().clone() for t in tables(layer)]
    losses = []
    for _ in range(60):
        loss = (layer(words) - 1).square().mean()
        losses.append(loss.item())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.1 * losses[0]
    pairs = zip(tables(layer), before, strict=True)
    moved = torch.cat([(table != old).any(1) for table, old in pairs]).nonzero()
    assert moved.flatten().tolist() == [2, 15, 60]


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_gradients_do_not_synchronize(kind):
    with FakeTensorMode():
        layer = SPARSE[kind](True)
        layer(torch.zeros(2, 3, dtype=torch.int64)).sum().backward()
        assert all(table.grad.is_sparse for table in tables(layer))
