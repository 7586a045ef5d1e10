"""Whole graphs and no waiting: what `torch.compile` and a device need of the model."""

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
def _nothing_compiled_before():
    """torch keeps eight versions of a function, and there are as many factorizations: without
    this, a ninth would fail for that reason alone."""
    torch.compiler.reset()


def tiny(factorization):
    config = preset("tiny", factorization)
    spellings = torch.randint(257, (4000, 50), dtype=torch.int16)
    return LanguageModel(config, spellings if isinstance(config.input, CharacterInput) else None)


def batch():
    words, targets = torch.randint(1000, (2, 2, 12))
    return words, targets, torch.rand(2, 12) < 0.7


@pytest.mark.parametrize(
    "factorization",
    [
        name if name == "ADP-T" else pytest.param(name, marks=pytest.mark.slow)
        for name in FACTORIZATIONS
    ],
)
def test_a_training_step_is_one_graph(factorization):
    model = tiny(factorization)
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="aot_eager")
    step(*batch()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.slow
@pytest.mark.parametrize("factorization", ["BPE-T", "ADP-T", "CNN"])
def test_a_training_step_in_low_precision_is_one_graph_too(factorization):
    """Rows as they are looked up, projected ones, and those made of characters."""
    model = tiny(factorization)

    def step(*b):
        with torch.autocast("cpu", torch.bfloat16):
            return model.nll(*b).sum()

    torch.compile(step, fullgraph=True, backend="aot_eager")(*batch()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


def test_a_modern_decoder_is_one_graph_too():
    model = LanguageModel(resolve("tiny/ADP-T", "modern", [], 4000))
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="aot_eager")
    step(*batch()).backward()
    assert model.decoder.layers[0].query.weight.grad is not None


@pytest.mark.slow
def test_compiled_code_computes_the_same():
    model = tiny("ADP-T").eval()
    arguments = batch()
    loss = model.nll(*arguments).sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    compiled = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True)(*arguments)
    assert compiled.item() == pytest.approx(loss.item(), rel=1e-5)
    gradients = torch.autograd.grad(compiled, list(model.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        assert_close(ours, theirs, 1e-4)


def test_other_batches_do_not_compile_again():
    model = tiny("ADP-T")
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="eager")
    step(*batch())
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            step(*batch())


def test_compiled_code_refuses_bad_ids_too():
    model = tiny("ADP-T")
    step = torch.compile(lambda *b: model.nll(*b).sum(), fullgraph=True, backend="aot_eager")
    words, targets, scored = batch()
    with pytest.raises(ValueError, match="words=4000: outside the vocabulary"):
        step(words.clamp(min=4000), targets, scored)


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_nothing_waits_for_the_device(factorization):
    """Pretended tensors have no values: what a host would have to read and wait for raises."""
    with FakeTensorMode():
        model = LanguageModel(
            preset("tiny", factorization),
            torch.zeros(4000, 50, dtype=torch.int16) if factorization == "CNN" else None,
        )
        words = torch.zeros(2, 12, dtype=torch.int64)
        scored = torch.ones(2, 12, dtype=torch.bool)
        model.nll(words, words, scored).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_nothing_inside_the_operators_waits_for_the_device():
    """Operators are opaque to the test above; meta tensors take their paths for devices."""
    with torch.device("meta"):
        hidden, weight = torch.zeros(40, 8), torch.zeros(50, 8)
        targets, active = torch.zeros(40, dtype=torch.int64), torch.ones(40, dtype=torch.bool)
        _, lse = linear_nll_chunked.forward(hidden, weight, targets, active)
        linear_nll_chunked.backward(lse, hidden, weight, targets, active, lse)
        operators._checked._init_fn(targets, active, "targets", 50)


@pytest.mark.parametrize("wait", [torch.Tensor.item, torch.Tensor.nonzero, lambda x: x[x > 0]])
def test_pretended_tensors_do_show_a_wait(wait):
    with FakeTensorMode(), pytest.raises(Exception, match="aten._local_scalar_dense|aten.nonzero"):
        wait(torch.zeros(1))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("factorization", ["ADP-T", "SM-T", "CNN"])
def test_a_step_on_a_gpu_never_synchronises(factorization, compiled):
    model = tiny(factorization).cuda()
    arguments = [tensor.cuda() for tensor in batch()]

    def step(*b):
        with torch.autocast("cuda", torch.bfloat16):
            return model.nll(*b).sum()

    run = torch.compile(step, fullgraph=True) if compiled else step
    run(*arguments).backward()  # compiles and allocates
    with no_waiting():
        run(*arguments).backward()


def test_the_pair_alone_compiles():
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
