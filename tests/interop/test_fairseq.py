"""Options become a config, and weights change their names, without a file."""

import pytest
import torch
from fairseq_checkpoints import as_v062, options_of, state_of
from interop.fairseq_models import MODELS, SIZE, build

from zipflm.config import ModelConfig
from zipflm.interop.fairseq import model_config, model_weights, weights_and_copies


@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_options_make_the_config_they_were_made_from(kind, final_norm):
    config = build(kind, final_norm=final_norm).config
    found = model_config(options_of(config), SIZE)
    assert (found.input, found.tie, found.vocab_size) == (config.input, config.tie, SIZE)
    assert found.decoder.final_norm == final_norm
    assert found.num_params() == config.num_params()


@pytest.mark.parametrize("kind", MODELS)
def test_weights_get_the_names_and_values_of_the_model(kind):
    model = build(kind)
    weights = model_weights(state_of(model), model.config)
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], t) for name, t in model.state_dict().items())


def test_fused_projections_are_split_in_their_order():
    model = build("ADP-T")
    _, state = as_v062(options_of(model.config), state_of(model))
    weights = model_weights(state, model.config)
    assert all(torch.equal(weights[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "copies"),
    [
        ("ADP", set()),
        ("SM-T", {"output.table"}),
        ("ADP tied embeddings", {f"output.embeddings.{band}" for band in range(3)}),
        (
            "ADP-T",
            {f"output.embeddings.{band}" for band in range(3)}
            | {f"output.tail_projections.{tail}" for tail in range(2)},
        ),
    ],
)
def test_second_copies_of_tied_weights_stand_apart(kind, copies):
    model = build(kind)
    assert weights_and_copies(state_of(model), model.config)[1].keys() == copies


@pytest.mark.parametrize(
    "name",
    ["decoder.layers.1000000.fc1.bias", "decoder.layers.\u0663.fc1.bias", "decoder.layers.fc1.bias"]
    + ["decoder.layers.0.layer_norms.1.bias", "encoder.layers.0.fc1.bias", "decoder.layers.{}.fc1"],
)
def test_unknown_names_are_listed(name):
    with pytest.raises(ValueError, match="unknown weights: .*fc1|layer_norms"):
        model_weights({name: torch.zeros(1)}, build("SM").config)


def test_names_are_printed_safely_and_counted():
    state = {f"\x1b[2J{i}": torch.zeros(1) for i in range(1_000)}
    with pytest.raises(ValueError, match=r"unknown weights: \\x1b\[2J0, .* and 990 more") as error:
        model_weights(state, build("SM").config)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", ["60,200", "[60, 200]", "(60,200,)", " 60 , 200 "])
def test_cutoffs_are_read_as_fairseq_evaluates_them(text):
    options = options_of(build("ADP-T").config)
    options |= {"adaptive_input_cutoff": text, "adaptive_softmax_cutoff": text}
    config = model_config(options, SIZE)
    assert isinstance(config, ModelConfig)
    assert config.input.cutoffs == config.output.cutoffs == (60, 200)


@pytest.mark.parametrize(
    "text",
    ["", "x", "60;200", "60,2e2", "60,'200'", "__import__('os')", "60,200or 7", "[60", "9" * 500]
    + ["(" * 900, "-" * 900 + "1", "\x1b[2J", "\0", "{60: 200}"],
)
def test_cutoffs_that_are_no_numbers_are_refused(text):
    options = options_of(build("ADP").config) | {"adaptive_input_cutoff": text}
    with pytest.raises(ValueError, match="adaptive_input_cutoff=.*: expected numbers") as error:
        model_config(options, SIZE)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "text", ["", "3", "[1]", "[(1, 2, 3)]", "[(1.5, 2)]", "[('1', '2')]", "[(1, 2)" * 100]
)
def test_filters_that_are_no_pairs_are_refused(text):
    options = options_of(build("CNN").config) | {"character_filters": text}
    with pytest.raises(ValueError, match="character_filters=.*: expected"):
        model_config(options, SIZE)
