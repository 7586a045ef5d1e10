import pytest
import torch
from golden_files import load
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import assert_as_good_as_plain, assert_close
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from zipflm import AdaptiveEmbedding, AdaptiveSoftmax, Bands, Tie
from zipflm.model.inputs import FixedEmbedding
from zipflm.model.outputs import FullSoftmax

BANDS = Bands(vocab_size=100, cutoffs=(10, 40), dim=16, factor=4)
TIES = list(Tie)


def make_softmax(tie=Tie.NONE, bands=BANDS, in_dim=None, **options):
    tied_to = AdaptiveEmbedding(bands, in_dim) if tie != Tie.NONE else None
    return AdaptiveSoftmax(bands, in_dim, tied_to=tied_to, tie=tie, **options), tied_to


def parameters_of(softmax, tied_to):
    own = dict(softmax.named_parameters())
    shared = dict(tied_to.named_parameters()) if tied_to is not None else {}
    return own | {f"tied.{name}": parameter for name, parameter in shared.items()}


@pytest.mark.parametrize(
    ("case", "tie"),
    [("untied", Tie.NONE), ("tied_emb", Tie.EMBEDDINGS), ("tied_emb_proj", Tie.PROJECTIONS)],
)
def test_adaptive_softmax_matches_published_code(case, tie):
    golden = load("modules/adaptive_softmax.npz")[case]
    bands = Bands(golden["vocab_size"], tuple(golden["cutoff"]), golden["input_dim"], 4)
    tied_to = AdaptiveEmbedding(bands).double() if tie != Tie.NONE else None
    # Their targets contain padding, which is ignored.
    softmax = AdaptiveSoftmax(
        bands, tied_to=tied_to, tie=tie, ignore_index=1, reduction="sum"
    ).double()
    state, grads = golden["state_dict"], golden["grads"]
    if tied_to is None:
        names = split_head(state, bands)
    else:
        names = {"clusters": state["head.class_proj.weight"]}
        shared = golden["input_state_dict"]
        tied_to.load_state_dict(
            {f"embeddings.{band}": shared[f"embeddings.{band}.0.weight"] for band in range(3)}
            | {f"projections.{band}": shared[f"embeddings.{band}.1.weight"] for band in range(3)}
        )
    for tail in range(2) if tie != Tie.PROJECTIONS else ():
        names[f"tail_projections.{tail}"] = state[f"tail.{tail}.0.weight"]
    softmax.load_state_dict(names)
    hidden = golden["x"].clone().requires_grad_()
    assert_close(softmax.log_probs(hidden), golden["log_probs"], 1e-12)
    loss = softmax(hidden, golden["target"])
    assert loss.item() == pytest.approx(golden["loss_sum"], abs=1e-10)
    loss.backward()
    assert_close(hidden.grad, golden["grad_x"], 1e-10)
    if tied_to is None:
        for name, expected in split_head(grads, bands).items():
            assert_close(softmax.get_parameter(name).grad, expected, 1e-10, name)
    else:
        assert_close(softmax.clusters.grad, grads["head.class_proj.weight"], 1e-10)
        assert_close(tied_to.embeddings[0].grad, grads["head.word_proj.weight"], 1e-10)
        assert_close(tied_to.embeddings[2].grad, grads["tail.1.2.weight"], 1e-10)
        tails = tied_to.projections[1:] if tie == Tie.PROJECTIONS else softmax.tail_projections
        for band, projection in enumerate(tails):
            assert_close(projection.grad, grads[f"tail.{band}.0.weight"], 1e-10)


def split_head(state, bands):
    words, clusters = state["head.weight"].split([bands.sizes[0], bands.num_tails])
    tails = {f"embeddings.{i + 1}": state[f"tail.{i}.2.weight"] for i in range(bands.num_tails)}
    return {"embeddings.0": words, "clusters": clusters} | tails


@pytest.mark.parametrize("tie", TIES)
def test_probabilities_sum_to_one_and_agree_with_nll(tie):
    softmax, _ = make_softmax(tie)
    hidden = torch.randn(1, 16).double()
    softmax.double()
    if (tied := softmax._tied_to[0]) is not None:
        tied.double()
    everything = softmax.nll(hidden.expand(100, 16), torch.arange(100))
    assert everything.neg().exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert_close(-everything, softmax.log_probs(hidden)[0], 1e-12)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=20), st.sampled_from(TIES), st.integers(0, 99)
)
def test_nll_is_in_token_order(targets, tie, seed):
    torch.manual_seed(seed)
    softmax, _ = make_softmax(tie)
    hidden, targets = torch.randn(len(targets), 16), torch.tensor(targets)
    one_by_one = torch.stack([softmax.nll(h, t) for h, t in zip(hidden, targets, strict=True)])
    assert_close(softmax.nll(hidden, targets), one_by_one, 1e-5)


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("targets", [[0, 9], [10], [40, 99, 41], [3, 12, 77]])
def test_every_parameter_gets_a_gradient(tie, targets):
    softmax, tied_to = make_softmax(tie)
    softmax(torch.randn(len(targets), 16), torch.tensor(targets)).backward()
    for name, parameter in parameters_of(softmax, tied_to).items():
        # The output uses the input's projections only if they are tied.
        if not (name == "tied.projections.0" and tie != Tie.HEAD) and not (
            name.startswith("tied.projections") and tie == Tie.EMBEDDINGS
        ):
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("cutoffs", [(10, 40), (50,), (5, 10, 20, 60)])
def test_losses_match_pytorch_in_both_directions(cutoffs):
    theirs = nn.AdaptiveLogSoftmaxWithLoss(32, 100, cutoffs, div_value=2.0).double()
    ours = AdaptiveSoftmax.from_torch(theirs)
    hidden, targets = torch.randn(50, 32).double(), torch.randint(100, (50,))
    output, loss = theirs(hidden, targets)
    assert_close(-ours.nll(hidden, targets), output, 1e-12)
    assert ours(hidden, targets).item() == pytest.approx(loss.item(), abs=1e-12)
    assert_close(ours.log_prob(hidden), theirs.log_prob(hidden), 1e-12)
    back = ours.to_torch()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name


def test_predictions_match_pytorch():
    theirs = nn.AdaptiveLogSoftmaxWithLoss(32, 100, (10, 40), div_value=2.0).double()
    ours = AdaptiveSoftmax.from_torch(theirs)
    hidden = torch.randn(3, 50, 32).double() * 20
    predicted = ours.predict(hidden)
    assert (predicted < 10).any() and (predicted >= 40).any()
    assert torch.equal(predicted.flatten(), theirs.predict(hidden.flatten(0, 1)))
    for k in (1, 7, 60):
        top, expected = ours.topk(hidden, k), theirs.log_prob(hidden.flatten(0, 1)).topk(k)
        assert top.indices.shape == (3, 50, k)
        assert torch.equal(top.indices.flatten(0, 1), expected.indices)
        assert_close(top.values.flatten(0, 1), expected.values, 1e-12)


def test_layers_accept_device_and_dtype():
    options = {"device": "meta", "dtype": torch.bfloat16}
    theirs = nn.AdaptiveLogSoftmaxWithLoss(32, 100, (10, 40))
    for layer in (
        AdaptiveEmbedding(BANDS, **options),
        AdaptiveSoftmax(BANDS, in_dim=8, **options),
        AdaptiveSoftmax.from_torch(theirs, **options),
    ):
        for parameter in layer.parameters():
            assert (parameter.device.type, parameter.dtype) == ("meta", torch.bfloat16)


def gradient_penalty(loss, hidden, *weights):
    hidden = hidden.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(hidden), hidden, create_graph=True)
    trainable = [weight for weight in weights if weight.requires_grad]
    return torch.autograd.grad(gradient.square().sum(), (hidden, *trainable))


def dual_numbers(loss, hidden, *weights):
    with forward_ad.dual_level():
        dual = loss(forward_ad.make_dual(hidden, hidden.flip(0)))
        return [forward_ad.unpack_dual(dual).tangent]


DERIVATIVES = {
    "gradient penalty": gradient_penalty,
    "dual numbers": dual_numbers,
    "grad": lambda loss, hidden, *_: [torch.func.grad(loss)(hidden)],
    "jvp": lambda loss, hidden, *_: torch.func.jvp(loss, (hidden,), (hidden.flip(0),)),
    "jacfwd": lambda loss, hidden, *_: [torch.func.jacfwd(loss)(hidden)],
    "hessian": lambda loss, hidden, *_: [torch.func.hessian(loss)(hidden)],
    "vmap of grad": lambda loss, hidden, *_: [
        torch.func.vmap(torch.func.grad(loss))(torch.stack([hidden, -hidden]))
    ],
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("is_trainable", [True, False])
def test_higher_and_forward_derivatives_match_pytorch(derivative, reduction, is_trainable):
    theirs = nn.AdaptiveLogSoftmaxWithLoss(8, 30, (6, 15), div_value=2.0).double()
    theirs.requires_grad_(is_trainable)
    ours = AdaptiveSoftmax.from_torch(theirs, reduction=reduction)
    ours.requires_grad_(is_trainable)
    full = FullSoftmax(30, 8, 8).double().requires_grad_(is_trainable)
    hidden, targets = torch.randn(4, 8).double(), torch.tensor([1, 7, 29, 3])
    full_loss = full.nll if reduction == "none" else full.nll_sum

    def their_loss(hidden):
        return -theirs.log_prob(hidden).gather(1, targets.unsqueeze(1)).mean()

    for loss, weights, expected, their_weights in (
        (
            lambda hidden: ours(hidden, targets).mean(),
            (ours.tail_projections[1], ours.embeddings[2]),
            their_loss,
            [layer.weight for layer in theirs.tail[1]],
        ),
        (
            lambda hidden: full_loss(hidden, targets).sum(),
            (full.table,),
            lambda hidden: F.cross_entropy(hidden @ full.table.T, targets, reduction="sum"),
            (full.table,),
        ),
    ):
        found = DERIVATIVES[derivative](loss, hidden, *weights)
        right = DERIVATIVES[derivative](expected, hidden, *their_weights)
        for one, other in zip(found, right, strict=True):
            assert_close(one, other, 1e-12)


def test_second_derivatives_of_tied_weights():
    embedding, targets = AdaptiveEmbedding(BANDS).double(), torch.tensor([1, 30, 99])
    found = []
    for impl in ("auto", "reference"):
        torch.manual_seed(1)
        softmax = AdaptiveSoftmax(
            BANDS, tied_to=embedding, tie="head", impl=impl, dtype=torch.float64
        )
        weights = [*embedding.parameters(), *softmax.parameters()]
        loss = softmax(embedding(targets.flip(0)), targets)
        first = torch.autograd.grad(loss, weights, create_graph=True)
        total = sum(gradient.square().sum() for gradient in first)
        found.append((*first, *torch.autograd.grad(total, weights)))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 1e-12)


def test_rejects_options_that_pytorch_lacks():
    with pytest.raises(ValueError, match="head_bias=True"):
        AdaptiveSoftmax.from_torch(nn.AdaptiveLogSoftmaxWithLoss(8, 20, (5,), head_bias=True))
    with pytest.raises(ValueError, match="tie='embeddings'.*needs tie='none'"):
        make_softmax(Tie.EMBEDDINGS)[0].to_torch()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_positions_have_no_loss_and_no_gradient(reduction):
    softmax, _ = make_softmax(reduction=reduction, ignore_index=-1)
    hidden = torch.randn(2, 3, 16, requires_grad=True)
    targets = torch.tensor([[5, -1, 50], [-1, 12, -1]])
    loss = softmax(hidden, targets)
    kept = softmax.nll(hidden[targets >= 0], targets[targets >= 0])
    if reduction == "none":
        assert loss.shape == targets.shape
        assert (loss[targets < 0] == 0).all()
        assert torch.equal(loss[targets >= 0], kept)
    else:
        assert loss.item() == pytest.approx(getattr(kept, reduction)().item(), rel=1e-6)
    loss.sum().backward()
    assert (hidden.grad[targets < 0] == 0).all()
    assert (hidden.grad[targets >= 0] != 0).any(dim=-1).all()


def make_any_softmax(kind, impl):
    """An output layer for vectors of width 24, and all parameters that its loss can reach."""
    if kind in ("full", "full, tied"):
        tied_to = FixedEmbedding(100, 16, 24) if kind == "full, tied" else None
        softmax = FullSoftmax(100, 16, 24, tied_to=tied_to, impl=impl)
    else:
        # Other ties do not allow a projection.
        bands = Bands(100, (10, 40), 16 if kind in (Tie.NONE, Tie.HEAD) else 24)
        softmax, tied_to = make_softmax(kind, bands, 24, impl=impl, tail_dropout=0.3)
    return softmax, parameters_of(softmax, tied_to)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("impl", ["reference", "auto"])
@pytest.mark.parametrize("kind", ["full", "full, tied", *TIES])
def test_unscored_positions_affect_nothing(kind, impl, poison):
    softmax, parameters = make_any_softmax(kind, impl)
    targets = torch.tensor([5, 50, 12, 99, 3, 30])
    scored = torch.tensor([True, False, True, True, False, True])
    vectors = torch.randn(6, 24).masked_fill(~scored.unsqueeze(1), 0.0)

    def results(value):
        torch.manual_seed(0)  # the same dropout
        hidden = vectors.masked_fill(~scored.unsqueeze(1), value).requires_grad_()
        nll = softmax.nll(hidden, targets, scored)
        reached = [hidden, *parameters.values()]
        gradients = torch.autograd.grad(nll.sum(), reached, materialize_grads=True)
        return dict(zip(["nll", "hidden", *parameters], [nll, *gradients], strict=True))

    with_zeros, poisoned = results(0.0), results(poison)
    for name, tensor in poisoned.items():
        assert torch.equal(tensor, with_zeros[name]), name
    assert (poisoned["nll"][~scored] == 0).all()
    assert (poisoned["hidden"][~scored] == 0).all()


def test_loss_is_zero_if_all_positions_are_ignored():
    softmax, _ = make_softmax()
    loss = softmax(torch.randn(4, 16), torch.full((4,), -100))
    assert loss.item() == 0
    loss.backward()
    assert all((p.grad == 0).all() for p in softmax.parameters())


def test_tail_dropout_affects_only_tails_in_training():
    torch.manual_seed(0)
    softmax, _ = make_softmax(tail_dropout=0.5)
    hidden = torch.randn(1, 16).expand(64, 16)
    head, tail = torch.full((64,), 3), torch.full((64,), 50)
    assert softmax.nll(hidden, head).unique().numel() == 1
    assert softmax.nll(hidden, tail).unique().numel() > 1
    softmax.eval()
    assert softmax.nll(hidden, tail).unique().numel() == 1


def test_input_dropout_affects_the_head():
    softmax, _ = make_softmax(input_dropout=0.5)
    hidden = torch.randn(1, 16).expand(64, 16)
    assert softmax.nll(hidden, torch.full((64,), 3)).unique().numel() > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tie", TIES)
def test_low_precision_keeps_float32_statistics(dtype, tie):
    torch.manual_seed(0)
    softmax, tied_to = make_softmax(tie, Bands(1000, (100, 400), 64))
    hidden, targets = torch.randn(40, 64), torch.randint(1000, (40,))
    low = nn.ModuleList([softmax, tied_to]) if tied_to is not None else softmax
    low.to(dtype)
    nll = softmax.nll(hidden.to(dtype), targets)
    assert nll.dtype == torch.float32
    softmax.impl = "reference"
    plain = softmax.nll(hidden.to(dtype), targets)
    low.double()
    truth = softmax.nll(hidden.to(dtype).double(), targets)
    assert_as_good_as_plain(truth, plain, nll)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_affects_products_but_not_statistics(dtype):
    softmax, _ = make_softmax(Tie.PROJECTIONS)
    hidden, targets = torch.randn(40, 16, requires_grad=True), torch.randint(100, (40,))
    with torch.autocast("cpu", dtype):
        nll = softmax.nll(hidden, targets)
    assert nll.dtype == torch.float32
    assert_close(nll, softmax.nll(hidden, targets), 2e-2)
    nll.sum().backward()
    assert hidden.grad.dtype == torch.float32
    assert softmax.clusters.grad.dtype == torch.float32


@pytest.mark.parametrize("target", [-1, 100])
@pytest.mark.parametrize("make", [lambda: make_softmax()[0], lambda: FullSoftmax(100, 8, 16)])
def test_rejects_targets_outside_the_vocabulary(make, target):
    with pytest.raises(ValueError, match=f"targets={target}: outside the vocabulary of 100 words"):
        make().nll(torch.randn(2, 16), torch.tensor([3, target]))


@pytest.mark.parametrize(
    ("width", "targets", "scored", "message"),
    [
        (16, torch.zeros(3, dtype=torch.long), None, r"targets.shape=\(3,\)"),
        (16, torch.zeros(2), None, "targets.dtype=torch.float32"),
        (16, torch.tensor([1, 2]), torch.tensor([True]), "scored: .*expected torch.bool"),
        (16, torch.tensor([1, 2]), torch.tensor([1, 1]), "scored: .*expected torch.bool"),
        (8, torch.tensor([1, 2]), None, r"hidden.shape=\(2, 8\): this layer expects .* width 16"),
    ],
)
def test_rejects_wrong_shapes_and_dtypes(width, targets, scored, message):
    with pytest.raises(ValueError, match=message):
        make_softmax()[0].nll(torch.randn(2, width), targets, scored)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tie": "embeddings"}, "tying needs both `tied_to`"),
        ({"tied_to": AdaptiveEmbedding(BANDS)}, "tying needs both `tied_to`"),
        (
            {"tied_to": AdaptiveEmbedding(Bands(100, (10, 50), 16)), "tie": "head"},
            "tied_to: its bands .*50.* do not match",
        ),
        (
            {"tied_to": AdaptiveEmbedding(BANDS, 24), "tie": "projections", "in_dim": 24},
            "bands.dim=16 must equal in_dim=24; or use tie='head'",
        ),
        ({"tie": "words"}, "tie='words': choose from none, embeddings, projections, head"),
        ({"tail_dropout": 1.0}, "tail_dropout=1.0: must be in"),
        (
            {"tied_to": AdaptiveEmbedding(BANDS), "tie": "head", "head_projection": True},
            "head_projection=True",
        ),
        (
            {"tied_to": AdaptiveEmbedding(BANDS, sparse=True), "tie": "embeddings"},
            "tied_to: its gradients are sparse",
        ),
        ({"reduction": "max"}, "reduction='max'"),
    ],
)
def test_rejects_inconsistent_options(options, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveSoftmax(BANDS, **options)


@pytest.mark.parametrize("dim", [16, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_full_softmax_equals_cross_entropy(dim, tied):
    embedding = FixedEmbedding(50, dim, 16) if tied else None
    softmax = FullSoftmax(50, dim, 16, tied_to=embedding)
    hidden, targets = torch.randn(3, 7, 16), torch.randint(50, (3, 7))
    projected = hidden if softmax.projection is None else softmax.projection(hidden)
    logits = projected @ (embedding.table if tied else softmax.table).T
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    assert_close(softmax.nll(hidden, targets), expected.view(3, 7), 1e-5)
    assert_close(softmax.log_probs(hidden), logits.log_softmax(-1), 1e-5)


def test_adaptive_softmax_initialization_matches_published_code():
    torch.manual_seed(0)
    golden = load("modules/adaptive_softmax.npz")["init_stats"]
    softmax = AdaptiveSoftmax(Bands(30_000, (2000, 10_000), 256))
    for ours, theirs in {
        "embeddings.0": "head.weight",
        "clusters": "head.weight",
        "tail_projections.0": "tail.0.0.weight",
        "embeddings.1": "tail.0.2.weight",
        "tail_projections.1": "tail.1.0.weight",
        "embeddings.2": "tail.1.2.weight",
    }.items():
        parameter = softmax.get_parameter(ours)
        assert parameter.std().item() == pytest.approx(golden[theirs]["std"], rel=0.06), ours
        assert parameter.abs().max().item() == pytest.approx(golden[theirs]["absmax"], rel=0.02)


def test_single_band_equals_full_softmax():
    softmax = AdaptiveSoftmax(Bands(20, (), 8))
    hidden = torch.randn(1, 8)
    assert softmax.nll(hidden.expand(20, 8), torch.arange(20)).neg().exp().sum().item() == (
        pytest.approx(1, abs=1e-6)
    )
    assert softmax.clusters.numel() == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
def test_accepts_all_integer_dtypes(dtype):
    bands = Bands(40_000, (50, 1000), 16)
    softmax = AdaptiveSoftmax(bands, reduction="none")
    hidden, targets = torch.randn(4, 16), torch.tensor([3, 100, 99, 120])
    assert torch.equal(softmax(hidden, targets.to(dtype)), softmax(hidden, targets))


def test_ignore_index_does_not_wrap_in_narrow_dtypes():
    softmax = AdaptiveSoftmax(Bands(200, (50,), 16), reduction="none", ignore_index=-100)
    assert softmax(torch.randn(1, 16), torch.tensor([156], dtype=torch.uint8)).item() > 0


def test_accepts_time_first_batches():
    softmax, _ = make_softmax()
    hidden, targets = torch.randn(2, 5, 16), torch.randint(100, (2, 5))
    scored = torch.rand(2, 5) < 0.5
    time_first = softmax.nll(hidden.transpose(0, 1), targets.T, scored.T)
    assert_close(time_first.T, softmax.nll(hidden, targets, scored), 1e-6)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_loss_is_zero_without_tokens(impl):
    softmax, tied_to = make_softmax(Tie.PROJECTIONS, impl=impl)
    hidden = tied_to(torch.zeros(0, 3, dtype=torch.int64))
    loss = softmax(hidden, torch.zeros(0, 3, dtype=torch.int64))
    assert loss.item() == 0
    loss.backward()
    assert (softmax.clusters.grad == 0).all()


def test_repr_shows_the_options():
    softmax, tied_to = make_softmax(Tie.HEAD)
    assert "cutoffs=(10, 40)" in repr(softmax) and "tie='head'" in repr(softmax)
    assert "out_dim=16" in repr(tied_to)


@pytest.mark.parametrize("tie", [Tie.NONE, Tie.EMBEDDINGS, Tie.PROJECTIONS])
def test_head_projection_changes_only_the_head(tie):
    softmax, tied_to = make_softmax(tie, head_projection=True)
    hidden = torch.randn(3, 16)
    plain = AdaptiveSoftmax(BANDS, tied_to=tied_to, tie=tie)
    plain.load_state_dict(softmax.state_dict(), strict=False)
    log_probs, unprojected = softmax.log_probs(hidden), plain.log_probs(hidden)
    assert not torch.equal(log_probs[:, :10], unprojected[:, :10])
    tail = slice(10, 40)
    assert_close(log_probs[:, tail].log_softmax(1), unprojected[:, tail].log_softmax(1), 1e-6)
    projected = plain.log_probs(hidden @ softmax.head_projection.T)
    assert_close(log_probs[:, :10], projected[:, :10], 1e-6)
    targets = torch.tensor([3, 20, 70])
    expected = log_probs.gather(1, targets.unsqueeze(1)).squeeze(1)
    assert_close(-softmax.nll(hidden, targets), expected, 1e-5)
