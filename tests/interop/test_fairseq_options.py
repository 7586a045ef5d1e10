"""Which options of a checkpoint are understood, refused or of no consequence."""

import re

import pytest
import torch
from fairseq_checkpoints import DICT, NEWEST, OLDEST, contents, options_of, save_args, state_of
from interop.fairseq_models import build, require_same

from zipflm.interop.fairseq_model import read_model
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
def test_options_without_a_model_here_are_listed(path, changes, tmp_path):
    whole = contents(path)
    args = (
        vars(whole["args"]) if whole["args"] else whole["cfg"]["model"] | {"arch": "transformer_lm"}
    )
    save_args(tmp_path / "m.pt", args | changes, whole["model"])
    with pytest.raises(ValueError, match="m.pt: options that zipflm has no model for") as error:
        read_model(tmp_path / "m.pt", DICT)
    for name, value in changes.items():
        assert f"{name}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"alibi": True},
        {"use_rotary": 1},
        {"positional_scheme": "rope"},
        {"moe_freq": 2, "num_experts": 8},
        {"sparse_bands": [1]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_model_options_of_which_nobody_heard_are_listed(changes, tmp_path):
    whole = contents()
    whole["cfg"]["model"] |= changes
    torch.save(whole, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="m.pt: options that zipflm has no model for") as error:
        read_model(tmp_path / "m.pt", DICT)
    assert all(f"{name}={value!r}" in str(error.value) for name, value in changes.items())


@pytest.mark.parametrize(
    ("value", "shown"), [(torch.zeros(1), "<Tensor>"), ({"a": 1}, "<dict>"), ([{}], "[<dict>]")]
)
def test_values_that_are_no_option_are_listed_by_their_kind(value, shown, tmp_path):
    whole = contents()
    whole["cfg"]["model"]["normformer"] = value
    torch.save(whole, tmp_path / "m.pt")
    with pytest.raises(ValueError, match=re.escape(f"no model for: normformer={shown}; it")):
        read_model(tmp_path / "m.pt", DICT)


def test_unheard_of_options_that_are_off_do_no_harm(tmp_path):
    whole = contents()
    whole["cfg"]["model"] |= {"alibi": False, "rope": None, "moe_freq": 0, "plan": "", "x": 0.0}
    whole["cfg"]["task"] |= {"sampling": "fast"}
    torch.save(whole, tmp_path / "m.pt")
    assert read_model(tmp_path / "m.pt", DICT).config == read_model(NEWEST, DICT).config


def test_options_of_the_optimizer_and_those_that_are_off_do_no_harm_in_a_flat_list(tmp_path):
    model = build("ADP-T")
    options = options_of(model.config)
    options |= {"scale_parameter": True, "share_all_embeddings": False, "encoder_layers": None}
    require_same(model, read_model(save_args(tmp_path / "m.pt", options, state_of(model)), DICT))


def test_norms_after_the_layers_are_refused_where_the_model_would_have_them(tmp_path):
    whole = contents()
    whole["cfg"]["model"]["decoder_normalize_before"] = False
    torch.save(whole, tmp_path / "section.pt")
    with pytest.raises(ValueError, match="no model for: decoder_normalize_before=False; it"):
        read_model(tmp_path / "section.pt", DICT)
    model = build("ADP-T")
    options = options_of(model.config) | {"decoder_normalize_before": False}
    flat = save_args(tmp_path / "flat.pt", options, state_of(model))
    require_same(model, read_model(flat, DICT))


def plain_options(**changes):
    return options_of(build("ADP-T").config) | changes


def test_values_in_messages_are_short():
    options = {"decoder_notes": "x" * 10**6, "arch": "y" * 10**6, "character_filters": "z" * 10**6}
    with pytest.raises(ValueError, match="arch='yyy.*, decoder_notes='xxx") as error:
        latest_options(plain_options(**options), {})
    assert len(str(error.value)) < 1_000


def test_many_options_in_a_message_are_counted():
    options = {f"decoder_extra_{i}": 1 for i in range(1_000)}
    with pytest.raises(ValueError, match="decoder_extra_9=1 and 990 more; it imports"):
        latest_options(plain_options(**options), {})


@pytest.mark.parametrize(
    "arch",
    ["transformer_lm\x1b[31m", "transformer_lm\n", "transformer_lm\u202e", "transformer_lm" * 10]
    + ["\ud800", "fconv_lm", b"transformer_lm", 3],
    ids=range(8),
)
def test_an_arch_that_is_no_name_is_refused(arch):
    with pytest.raises(ValueError, match="no model for: arch=") as error:
        latest_options(plain_options(arch=arch), {})
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["decoder_\x1b[2J", "decoder_" + "x" * 10**6])
def test_names_in_messages_are_short_and_printable(name):
    with pytest.raises(ValueError, match="no model for: '?decoder_") as error:
        latest_options(plain_options(**{name: 1}), {})
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1_000


def test_options_named_like_methods_do_no_harm_in_a_flat_list():
    names = ["keys", "items", "get", "values", "__class__"]
    plain = latest_options(plain_options(), {})
    assert latest_options(plain_options(**{name: 1 for name in names}), {}).items() >= plain.items()


def test_options_of_the_latest_version_stay_as_they_are():
    latest = latest_options(plain_options(), {})
    assert latest_options(latest, {}) == latest


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
def test_what_older_versions_meant(options, expected):
    latest = latest_options(plain_options(**options), {})
    assert {name: latest[name] for name in expected} == expected


def test_cutoffs_may_stand_in_brackets(tmp_path):
    model = build("ADP-T")
    options = options_of(model.config)
    options |= {"adaptive_input_cutoff": "[60, 200]", "adaptive_softmax_cutoff": "(60,200)"}
    require_same(model, read_model(save_args(tmp_path / "m.pt", options, state_of(model)), DICT))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("adaptive_input_cutoff", None),
        ("adaptive_input_cutoff", ""),
        ("adaptive_input_cutoff", "60,2e2"),
        ("adaptive_softmax_cutoff", "60;200"),
        ("adaptive_softmax_cutoff", "(" * 1000),
    ],
)
def test_cutoffs_that_are_not_understood_are_refused_by_name(name, value, tmp_path):
    model = build("ADP")
    options = options_of(model.config) | {name: value}
    with pytest.raises(ValueError, match=f"m.pt: {name}=.*expected numbers like '20000,60000'"):
        read_model(save_args(tmp_path / "m.pt", options, state_of(model)), DICT)


def test_missing_options_are_listed(tmp_path):
    model = build("CNN")
    options = options_of(model.config)
    gone = {"decoder_attention_heads", "dropout", "activation_dropout", "character_filters"}
    options = {name: value for name, value in options.items() if name not in gone}
    save_args(tmp_path / "m.pt", options, state_of(model))
    with pytest.raises(ValueError, match="options missing from the checkpoint") as error:
        read_model(tmp_path / "m.pt", DICT)
    assert all(name in str(error.value) for name in gone)


@pytest.mark.parametrize(
    "name",
    ["dropout", "decoder_layers", "decoder_input_dim", "tie_adaptive_proj", "tokens_per_sample"],
)
@pytest.mark.parametrize("value", ["x", [1], -1, 10**30, torch.zeros(2)], ids=str)
def test_options_of_another_kind_are_refused(name, value, tmp_path):
    model = build("ADP-T")
    save_args(tmp_path / "m.pt", options_of(model.config) | {name: value}, state_of(model))
    with pytest.raises(ValueError, match=f"m.pt: options that zipflm has no model for: .*{name}="):
        read_model(tmp_path / "m.pt", DICT)
