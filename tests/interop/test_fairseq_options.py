import pytest
import torch
from fairseq_checkpoints import DICT, NEWEST, OLDEST, contents, options_of, save_args, state_of
from interop.fairseq_models import SIZE, build, require_same

from zipflm.interop.fairseq import model_config, read_model
from zipflm.interop.fairseq_options import latest_options


@pytest.mark.parametrize("path", [NEWEST, OLDEST], ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "changes",
    [
        {"activation_fn": "gelu"},
        {"decoder_learned_pos": True},
        {"no_token_positional_embeddings": True},
        {"no_scale_embedding": True, "layernorm_embedding": True},
        {"base_layers": 1},
        {"scale_fc": True, "scale_attn": True, "scale_heads": True, "scale_resids": True},
        {"add_bos_token": True},
        {"decoder_layers_to_keep": "0,2"},
        {"decoder_moe_experts": 8},
        {"encoder_layers": 6},
        {"arch": "fconv_lm"},
        {"task": "translation"},
        {"future_target": True},
        {"output_dictionary_size": 100},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rejects_unsupported_options(path, changes, tmp_path):
    whole = contents(path)
    args = (
        vars(whole["args"]) if whole["args"] else whole["cfg"]["model"] | {"arch": "transformer_lm"}
    )
    save_args(tmp_path / "m.pt", args | changes, whole["model"])
    with pytest.raises(ValueError, match="m.pt: unsupported options: ") as error:
        read_model(tmp_path / "m.pt", DICT)
    for name, value in changes.items():
        assert f"{name}={value!r}" in str(error.value)


def test_rejects_unknown_model_options_unless_off(tmp_path):
    whole = contents()
    whole["cfg"]["model"] |= {"alibi": True, "normformer": {"a": 1}, "arch": "transformer_lm\x1b"}
    torch.save(whole, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="unsupported options: alibi=True, normformer=") as error:
        read_model(tmp_path / "m.pt", DICT)
    assert "arch=" in str(error.value) and str(error.value).isprintable()
    whole = contents()
    whole["cfg"]["model"] |= {"alibi": False, "rope": None, "moe_freq": 0, "plan": "", "x": 0.0}
    whole["cfg"]["task"] |= {"sampling": "fast"}
    torch.save(whole, tmp_path / "m.pt")
    assert read_model(tmp_path / "m.pt", DICT).config == read_model(NEWEST, DICT).config


def test_ignores_training_options_in_a_flat_list(tmp_path):
    model = build("ADP-T")
    options = options_of(model.config)
    options |= {"scale_parameter": True, "share_all_embeddings": False, "encoder_layers": None}
    require_same(model, read_model(save_args(tmp_path / "m.pt", options, state_of(model)), DICT))


def test_rejects_post_norm(tmp_path):
    whole = contents()
    whole["cfg"]["model"]["decoder_normalize_before"] = False
    torch.save(whole, tmp_path / "section.pt")
    with pytest.raises(ValueError, match="unsupported options: decoder_normalize_before=False; "):
        read_model(tmp_path / "section.pt", DICT)
    model = build("ADP-T")
    options = options_of(model.config) | {"decoder_normalize_before": False}
    flat = save_args(tmp_path / "flat.pt", options, state_of(model))
    require_same(model, read_model(flat, DICT))


def plain_options(**changes):
    return options_of(build("ADP-T").config) | changes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"activation_dropout": None, "relu_dropout": 0.3}, {"activation_dropout": 0.3}),
        ({"activation_dropout": 0.2, "relu_dropout": 0.3}, {"activation_dropout": 0.2}),
        ({"decoder_input_dim": None}, {"decoder_input_dim": 16}),
        ({"decoder_output_dim": 0}, {"decoder_output_dim": 16}),
        ({"no_decoder_final_norm": None, "decoder_final_norm": True}, {"no_decoder_final_norm": 0}),
        ({"tie_adaptive_proj": False, "no_tie_adaptive_proj": False}, {"tie_adaptive_proj": True}),
        ({"adaptive_softmax_dropout": None}, {"adaptive_softmax_dropout": 0.0}),
    ],
)
def test_options_of_older_versions(options, expected):
    latest = latest_options(plain_options(**options), {})
    assert {name: latest[name] for name in expected} == expected


@pytest.mark.parametrize("text", ["60,200", "[60, 200]", "(60,200,)", " 60 , 200 "])
def test_cutoff_formats(text):
    options = plain_options(adaptive_input_cutoff=text, adaptive_softmax_cutoff=text)
    config = model_config(latest_options(options, {}), SIZE)
    assert config.input.cutoffs == config.output.cutoffs == (60, 200)


@pytest.mark.parametrize("text", [None, "", "60;200", "60,2e2", "__import__('os')"])
def test_rejects_invalid_cutoffs(text):
    with pytest.raises(ValueError, match="adaptive_input_cutoff=.*: expected numbers"):
        model_config(latest_options(plain_options(adaptive_input_cutoff=text), {}), SIZE)


@pytest.mark.parametrize("text", ["", "[1]", "[(1.5, 2)]"])
def test_rejects_invalid_filters(text):
    options = options_of(build("CNN").config) | {"character_filters": text}
    with pytest.raises(ValueError, match="character_filters=.*: expected"):
        model_config(latest_options(options, {}), SIZE)


def test_lists_missing_options(tmp_path):
    model = build("CNN")
    options = options_of(model.config)
    gone = {"decoder_attention_heads", "dropout", "activation_dropout", "character_filters"}
    options = {name: value for name, value in options.items() if name not in gone}
    save_args(tmp_path / "m.pt", options, state_of(model))
    with pytest.raises(ValueError, match="options missing from the checkpoint") as error:
        read_model(tmp_path / "m.pt", DICT)
    assert all(name in str(error.value) for name in gone)


@pytest.mark.parametrize("name", ["dropout", "decoder_layers"])
@pytest.mark.parametrize("value", ["x", -1], ids=str)
def test_rejects_invalid_values(name, value, tmp_path):
    model = build("SM-T")
    options = options_of(model.config) | {name: value}
    path = save_args(tmp_path / "m.pt", options, state_of(model))
    with pytest.raises(ValueError, match="m.pt: "):
        read_model(path, DICT)
