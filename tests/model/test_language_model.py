import copy
import json
from dataclasses import replace

import pytest
import torch
from golden_files import GOLDEN, MODELS, load
from numerics import assert_close

from zipflm import LanguageModel, preset
from zipflm.config import CharacterInput, FixedInput, FullOutput, ModelConfig, TransformerDecoder
from zipflm.interop.fairseq import model_config, model_weights
from zipflm.interop.fairseq_options import latest_options
from zipflm.presets import DATASETS, FACTORIZATIONS, SIZES, variants_of

SPELLINGS = torch.randint(257, (4000, 50), dtype=torch.int16)


def tiny(factorization, **options):
    config = preset("tiny", factorization)
    needs = isinstance(config.input, CharacterInput)
    return LanguageModel(config, SPELLINGS if needs else None, **options)


def golden_model(golden, dtype):
    config = model_config(latest_options(golden["args"], {}), vocab_size=400)
    model = LanguageModel(config, golden.get("spellings")).to(dtype)
    weights = model_weights(golden["state"], config)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.items()})
    return model


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", MODELS)
def test_models_match_published_code(name, dtype, within):
    golden = load(f"models/{name}.npz")
    model = golden_model(golden, dtype)
    words, targets = golden["src_tokens"].long(), golden["target"].long()
    scored = targets != 1
    assert_close(model.log_probs(words)[scored], golden["log_probs"], within, "log_probs")
    if model.output.projection is None:  # their features come after the projection
        assert_close(model(words)[scored], golden["features"], within, "features")
    nll = model.nll(words, targets, scored)
    assert (nll[~scored] == 0).all()
    nll.sum().backward()
    assert nll.sum().item() == pytest.approx(golden["loss_sum"].item(), rel=within)
    gradients = model_weights(golden["grad"], model.config)
    parameters = dict(model.named_parameters())
    assert gradients.keys() == parameters.keys()
    for parameter, expected in gradients.items():
        assert_close(parameters[parameter].grad, expected, within, parameter)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith(("a", "cnn"))])
def test_published_loss_ignores_words_after_each_cutoff(name):
    """The published code also ignores in-band target 1 in every tail."""
    golden = load(f"models/{name}.npz")
    model = golden_model(golden, torch.float64)
    words, targets = golden["src_tokens_quirk"].long(), golden["target_quirk"].long()
    nll = model.nll(words, targets, targets != 1)
    true_loss, published_loss = golden["quirk_nll_sum"].item(), golden["quirk_loss_sum"].item()
    assert nll.sum().item() == pytest.approx(true_loss, rel=1e-10)
    # The tail part of exactly those words is missing.
    head = model.output
    dropped = sum(
        nll[targets == cutoff + 1].sum()
        + head.log_probs(model(words))[targets == cutoff + 1][:, cutoff:next_edge]
        .logsumexp(-1)
        .sum()
        for cutoff, next_edge in zip(head.bands.edges[1:-1], head.bands.edges[2:], strict=True)
    )
    assert dropped > 1
    assert published_loss == pytest.approx(true_loss - dropped.item(), rel=1e-10)


def test_initialization_matches_the_papers_code():
    torch.manual_seed(0)
    golden = json.loads((GOLDEN / "init_stats_v062.json").read_text())
    golden["decoder.output_projection.weight"] = golden.pop("decoder.embed_out")
    fused = golden.pop("decoder.layers.0.self_attn.in_proj_weight")
    bias = golden.pop("decoder.layers.0.self_attn.in_proj_bias")
    for part in "qkv":
        golden[f"decoder.layers.0.self_attn.{part}_proj.weight"] = fused
        golden[f"decoder.layers.0.self_attn.{part}_proj.bias"] = bias
    model = LanguageModel(
        ModelConfig(
            vocab_size=3000,
            input=FixedInput(dim=128),
            decoder=TransformerDecoder(dim=256, num_layers=1, num_heads=4, ffn_dim=1024),
            output=FullOutput(dim=128),
        )
    )
    for name, stats in rename_statistics(golden, model.config).items():
        parameter = model.get_parameter(name)
        assert parameter.std().item() == pytest.approx(stats["std"], rel=0.02, abs=1e-9), name
        assert parameter.mean().item() == pytest.approx(stats["mean"], abs=2e-3), name
        assert parameter.abs().max().item() == pytest.approx(stats["absmax"], rel=0.3), name


def test_fairseq_initialization_matches_current_fairseq():
    torch.manual_seed(0)
    golden = json.loads((GOLDEN / "init_stats_main.json").read_text())["main.adp"]
    golden = {name: stats for name, stats in golden.items() if ".layers.0." in name}
    small = TransformerDecoder(dim=256, num_layers=1, num_heads=4, ffn_dim=1024)
    layers = {"input": FixedInput(dim=8), "output": FullOutput(dim=8)}
    decoder = replace(small, init="fairseq")
    model = LanguageModel(ModelConfig(vocab_size=10, decoder=decoder, **layers))
    for name, stats in rename_statistics(golden, model.config).items():
        parameter = model.get_parameter(name)
        assert parameter.std().item() == pytest.approx(stats["std"], rel=0.1, abs=1e-9), name


def rename_statistics(golden, config):
    """Rename statistics by converting the weights of a checkpoint."""
    handles = {name: torch.tensor([index]) for index, name in enumerate(golden)}
    values = list(golden.values())
    return {ours: values[int(i)] for ours, i in model_weights(handles, config).items()}


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_next_word_probabilities_sum_to_one(factorization):
    model = tiny(factorization).eval()
    words = torch.randint(1000, (1, 3))
    assert_close(model.log_probs(words).exp().sum(-1), torch.ones(1, 3), 1e-4)


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_both_implementations_agree(factorization):
    fused = tiny(factorization, impl="auto").eval()
    plain = tiny(factorization, impl="reference").eval()
    plain.load_state_dict(fused.state_dict())
    words, targets = torch.randint(1000, (2, 2, 12))
    assert_close(fused.nll(words, targets), plain.nll(words, targets), 1e-5)


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_autocast_applies_to_every_factorization(factorization):
    model, seen = tiny(factorization), []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output[0]]))
    model.decoder.register_forward_hook(lambda _, inputs, output: seen.append(output[0]))
    with torch.autocast("cpu", torch.bfloat16):
        model.nll(*torch.randint(1000, (2, 2, 12))).sum().backward()
    assert len(seen) == 5
    assert {tensor.dtype for tensor in seen} == {torch.bfloat16}
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def all_presets():
    for dataset in DATASETS:
        for factorization in FACTORIZATIONS:
            for size in SIZES if dataset == "billion-word" else ("base",):
                yield preset(dataset, factorization, size=size)
            for variant in variants_of(dataset, factorization):
                yield preset(dataset, factorization, variant=variant)


@pytest.mark.parametrize("config", list(all_presets()), ids=lambda config: config.name)
def test_config_parameter_count_matches_built_model(config):
    with torch.device("meta"):
        model = LanguageModel(config)
    assert config.num_params() == sum(parameter.numel() for parameter in model.parameters())
    for part, count in config.params_by_part().items():
        assert count > 0, part


def test_tied_weights_are_stored_once():
    state = tiny("ADP-T").state_dict()
    assert "output.clusters" in state
    assert not any(name.startswith(("output.embeddings", "output.tail")) for name in state)
    assert "output.table" not in tiny("SM-T").state_dict()


def test_copied_models_are_tied_to_themselves():
    model = tiny("ADP-T").eval()
    copied = copy.deepcopy(model)
    words, targets = torch.randint(4000, (2, 1, 6))
    with torch.no_grad():
        copied.input.embeddings[0].zero_()
    assert (model.log_probs(words) != copied.log_probs(words)).any()
    copied.nll(words, targets).sum().backward()
    assert model.input.embeddings[1].grad is None
    assert copied.input.embeddings[1].grad is not None


def test_weight_names_are_stable():
    names = tiny("ADP-T").state_dict().keys() | tiny("CNN").state_dict().keys()
    names |= tiny("SM").state_dict().keys()
    for promised in (
        "input.embeddings.2",
        "input.projections.0",
        "decoder.layers.1.attention_norm.weight",
        "decoder.layers.1.query.bias",
        "decoder.layers.1.attention_out.weight",
        "decoder.layers.1.ffn_in.weight",
        "output.clusters",
        "output.tail_projections.0",
        "output.embeddings.2",
        "input.bytes",
        "input.convolutions.0.weight",
        "input.highway.0.bias",
        "input.symbols",
        "input.table",
        "output.table",
        "output.projection.weight",
    ):
        assert promised in names


def test_rejects_missing_or_wrong_spellings():
    with pytest.raises(ValueError, match=r"spellings=None.*\(4000, 50\)"):
        LanguageModel(preset("tiny", "CNN"))
    with pytest.raises(ValueError, match=r"spellings.shape=\(7, 50\): expected \(4000, 50\)"):
        LanguageModel(preset("tiny", "CNN"), SPELLINGS[:7])
