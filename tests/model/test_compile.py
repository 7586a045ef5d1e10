"""The model compiles to one graph and does not synchronize with the device."""

import pytest
import torch
from numerics import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode
from waiting import no_waiting

from zipflm import AdaptiveEmbedding, AdaptiveSoftmax, Bands, LanguageModel, preset
from zipflm.config import CharacterInput
from zipflm.kernels import linear_nll_chunked, operators
from zipflm.presets import FACTORIZATIONS
from zipflm.presets.recipes import resolve


@pytest.fixture(autouse=True)
def _reset_compiler():
    """torch keeps at most eight compiled versions of a function."""
    torch.compiler.reset()


OTHERS = [name for name in FACTORIZATIONS if name != "ADP-T"]


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


def tiny(name):
    is_modern = name == "modern"
    config = resolve("tiny/ADP-T", "modern", [], 4000) if is_modern else preset("tiny", name)
    spellings = torch.randint(257, (4000, 50), dtype=torch.int16)
    return LanguageModel(config, spellings if isinstance(config.input, CharacterInput) else None)


def batch():
    words, targets = torch.randint(1000, (2, 2, 12))
    return words, targets, torch.rand(2, 12) < 0.7


@pytest.mark.parametrize("name", ["ADP-T", "modern", *map(slow, OTHERS)])
def test_training_step_is_one_graph(name):
    model = tiny(name)
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="aot_eager")
    step(*batch()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BPE-T", "ADP-T", "CNN"])
def test_low_precision_training_step_is_one_graph(name):
    """With looked-up, projected and character-based embeddings."""
    model = tiny(name)

    def step(*b):
        with torch.autocast("cpu", torch.bfloat16):
            return model.nll(*b).sum()

    torch.compile(step, fullgraph=True, backend="aot_eager")(*batch()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.slow
def test_compiled_code_gives_the_same_results():
    model = tiny("ADP-T").eval()
    arguments = batch()
    loss = model.nll(*arguments).sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    compiled = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True)(*arguments)
    assert compiled.item() == pytest.approx(loss.item(), rel=1e-5)
    gradients = torch.autograd.grad(compiled, list(model.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        assert_close(ours, theirs, 1e-4)


def test_other_batches_do_not_recompile():
    model = tiny("ADP-T")
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="eager")
    step(*batch())
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            step(*batch())


def test_compiled_code_rejects_bad_ids():
    model = tiny("ADP-T")
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="aot_eager")
    words, targets, scored = batch()
    with pytest.raises(ValueError, match="words=4000: outside the vocabulary"):
        step(words.clamp(min=4000), targets, scored)


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_training_step_does_not_synchronize(factorization):
    """Fake tensors have no values, so reading one on the host raises."""
    with FakeTensorMode():
        model = LanguageModel(
            preset("tiny", factorization),
            torch.zeros(4000, 50, dtype=torch.int16) if factorization == "CNN" else None,
        )
        words = torch.zeros(2, 12, dtype=torch.int64)
        scored = torch.ones(2, 12, dtype=torch.bool)
        model.nll(words, words, scored).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_operators_do_not_synchronize():
    """The test above does not look into operators; meta tensors take the path for devices."""
    with torch.device("meta"):
        hidden, weight = torch.zeros(40, 8), torch.zeros(50, 8)
        targets, active = torch.zeros(40, dtype=torch.int64), torch.ones(40, dtype=torch.bool)
        _, lse = linear_nll_chunked.forward(hidden, weight, targets, active)
        linear_nll_chunked.backward(lse, hidden, weight, targets, active, lse)
        operators._checked._init_fn(targets, active, "targets", 50)


@pytest.mark.parametrize("wait", [torch.Tensor.item, torch.Tensor.nonzero, lambda x: x[x > 0]])
def test_fake_tensors_detect_synchronization(wait):
    with FakeTensorMode(), pytest.raises(Exception, match="aten._local_scalar_dense|aten.nonzero"):
        wait(torch.zeros(1))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("factorization", ["ADP-T", "SM-T", "CNN"])
def test_gpu_step_does_not_synchronize(factorization, compiled):
    model = tiny(factorization).cuda()
    arguments = [tensor.cuda() for tensor in batch()]

    def step(*b):
        with torch.autocast("cuda", torch.bfloat16):
            return model.nll(*b).sum()

    run = torch.compile(step, fullgraph=True) if compiled else step
    run(*arguments).backward()  # compiles and allocates
    with no_waiting():
        run(*arguments).backward()


def test_layer_pair_compiles():
    bands = Bands(1000, (100, 400), 64)
    embedding = AdaptiveEmbedding(bands)
    softmax = AdaptiveSoftmax(bands, tied_to=embedding, tie="head", tail_dropout=0.2)
    loss = torch.compile(
        lambda words, targets: softmax(embedding(words), targets),
        fullgraph=True,
        backend="aot_eager",
    )
    loss(torch.randint(1000, (3, 5)), torch.tensor([[1, 2, 500, -100, 7]] * 3)).backward()
    assert softmax.clusters.grad is not None
