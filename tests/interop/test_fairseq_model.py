import os

import pytest
import torch
from fairseq_checkpoints import DICT, NEWEST, OLDEST, as_v062, options_of, save_args, state_of
from interop.fairseq_models import MODELS, SIZE, build, require_same

from zipflm.config import PLAIN, Splitting
from zipflm.data.bpe import Codes
from zipflm.interop.fairseq import import_run, model_weights, read_model
from zipflm.runs.load import load_run
from zipflm.runs.records import ImportedState


@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_imports_all_kinds_of_models(kind, final_norm, tmp_path):
    model = build(kind, final_norm=final_norm)
    path = save_args(tmp_path / "model.pt", options_of(model.config), state_of(model))
    imported = read_model(path, DICT)
    assert imported.config.tie == model.config.tie
    assert imported.config.decoder.final_norm == final_norm
    assert imported.config.num_params() == model.config.num_params()
    require_same(model, imported)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "stream"])
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "ASM narrow"])
def test_imports_files_of_2019(kind, legacy, tmp_path):
    model = build(kind)
    options, state = as_v062(options_of(model.config), state_of(model))
    imported = read_model(save_args(tmp_path / "old.pt", options, state, legacy=legacy), DICT)
    assert not imported.config.decoder.final_norm
    require_same(model, imported)


@pytest.mark.parametrize("kind", ["ADP tied embeddings", "ADP-T"])
@pytest.mark.parametrize("flag", [True, False, None])
def test_tied_projections_follow_from_shapes(kind, flag, tmp_path):
    model = build(kind)
    options = options_of(model.config)
    del options["tie_adaptive_proj"], options["no_decoder_final_norm"]
    if flag is not None:
        options["no_tie_adaptive_proj"] = flag
    imported = read_model(save_args(tmp_path / "model.pt", options, state_of(model)), DICT)
    assert imported.config.tie == model.config.tie
    require_same(model, imported)


@pytest.mark.parametrize("final_norm", [False, True])
def test_final_norm_follows_from_weights(final_norm, tmp_path):
    model = build("SM-T", final_norm=final_norm)
    options = options_of(model.config)
    del options["no_decoder_final_norm"]
    imported = read_model(save_args(tmp_path / "model.pt", options, state_of(model)), DICT)
    assert imported.config.decoder.final_norm == final_norm
    require_same(model, imported)


def test_imports_numbered_layer_norms(tmp_path):
    model = build("ADP-T")
    state = {
        name.replace("self_attn_layer_norm", "layer_norms.0").replace(
            "final_layer_norm", "layer_norms.2"
        ): tensor
        for name, tensor in state_of(model).items()
    }
    options, state = as_v062(options_of(model.config), state)
    require_same(model, read_model(save_args(tmp_path / "m.pt", options, state), DICT))


def test_half_precision_weights_become_float32(tmp_path):
    model = build("ADP-T")
    state = {name: tensor.half() for name, tensor in state_of(model).items()}
    imported = read_model(save_args(tmp_path / "m.pt", options_of(model.config), state), DICT)
    assert {tensor.dtype for tensor in imported.weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update({"decoder.extra": torch.zeros(1)}), "unknown weights: decoder.extra"),
        (lambda s: s.pop("decoder.layers.1.fc1.bias"), 'Missing .*: "decoder.layers.1.ffn_in.bias'),
        (
            lambda s: s.update({"decoder.layer_norm.weight": torch.ones(16)}),
            'Unexpected .*: "decoder.final_norm.weight',
        ),
        (
            lambda s: s.update({"decoder.layers.0.fc2.weight": torch.ones(16, 25)}),
            r"size mismatch for decoder.layers.0.ffn_out.weight: .*\[16, 25\].*\[16, 24\]",
        ),
        (
            lambda s: s.pop("decoder.adaptive_softmax.version"),
            "decoder.adaptive_softmax.version is missing; .* old adaptive softmax format",
        ),
        (
            lambda s: s.update({"decoder.layers.0.fc1.bias": torch.ones(24, dtype=torch.int8)}),
            "decoder.layers.0.ffn_in.bias",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_lists_weights_that_do_not_fit(change, message, tmp_path):
    model = build("ADP-T")
    state = {name: tensor.clone() for name, tensor in state_of(model).items()}
    change(state)
    path = save_args(tmp_path / "m.pt", options_of(model.config), state)
    with pytest.raises(ValueError, match=f"m.pt: .*{message}"):
        read_model(path, DICT)


@pytest.mark.parametrize(
    "name",
    ["decoder.layers.fc1.bias", "decoder.layers.0.layer_norms.1.bias", "encoder.layers.0.fc1.bias"]
    + ["\x1b[2J"],
)
def test_lists_unknown_weights(name):
    with pytest.raises(ValueError, match="unknown weights: ") as error:
        model_weights({name: torch.zeros(1)}, build("SM").config)
    assert str(error.value).isprintable()


def test_run_is_named_after_the_arch(tmp_path):
    model = build("SM-T")
    for arch, name in (
        ("transformer_lm_gbw", "fairseq/transformer_lm_gbw"),
        (None, "fairseq/transformer_lm"),
    ):
        options = options_of(model.config) | {"arch": arch}
        path = save_args(tmp_path / "m.pt", options, state_of(model))
        assert read_model(path, DICT).config.name == name


@pytest.mark.parametrize("kind", ["SM-T", "ADP-T", "CNN"])
@pytest.mark.parametrize("lines", [-8, +8])
def test_rejects_dictionary_of_another_size(kind, lines, tmp_path):
    model = build(kind)
    path = save_args(tmp_path / "m.pt", options_of(model.config), state_of(model))
    entries = DICT.read_text().splitlines()
    entries = entries[:lines] if lines < 0 else entries + [f"filler{i} 0" for i in range(lines)]
    (tmp_path / "dict.txt").write_text("\n".join(entries) + "\n")
    message = rf"size mismatch .*; if sizes differ, use the dict.txt .* has {SIZE + lines} entries"
    with pytest.raises(ValueError, match=message):
        read_model(path, tmp_path / "dict.txt")


def test_unit_follows_from_the_dictionary(tmp_path):
    model = build("SM-T")
    path = save_args(tmp_path / "m.pt", options_of(model.config), state_of(model))
    assert read_model(path, DICT).config.batches.unit == "word"
    entries = DICT.read_text().splitlines()
    pieces = [line.replace(" ", "@@ ") for line in entries[:100]] + entries[100:]
    (tmp_path / "dict.txt").write_text("\n".join(pieces) + "\n")
    assert read_model(path, tmp_path / "dict.txt").config.batches.unit == "bpe"


def test_rejects_sentencepiece_dictionaries(tmp_path):
    model = build("SM-T")
    path = save_args(tmp_path / "m.pt", options_of(model.config), state_of(model))
    entries = ["\u2581" + line for line in DICT.read_text().splitlines()]
    (tmp_path / "dict.txt").write_text("\n".join(entries) + "\n")
    with pytest.raises(ValueError, match="dict.txt: 49. of 496 entries .* sentencepiece"):
        read_model(path, tmp_path / "dict.txt")


@pytest.mark.parametrize("checkpoint", [NEWEST, OLDEST], ids=["newest", "oldest"])
def test_imported_run_has_the_model(checkpoint, tmp_path):
    config = import_run(checkpoint, DICT, tmp_path / "run")
    expected = read_model(checkpoint, DICT)
    loaded = load_run(tmp_path / "run")
    assert loaded.config == config == expected.config
    state = ImportedState(update=60, imported_from=str(checkpoint))
    assert loaded.checkpoint.state() == state
    assert loaded.vocabulary == expected.vocabulary and loaded.codes is None
    weights = loaded.model.state_dict()
    assert weights.keys() == expected.weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.weights.items())


def test_codes_make_the_unit_bpe(tmp_path):
    # Even if the dictionary has no pieces.
    Codes([("t", "h"), ("th", "e</w>")]).save(tmp_path / "codes")
    config = import_run(NEWEST, DICT, tmp_path / "run", bpe_codes=tmp_path / "codes")
    assert config.batches.unit == "bpe"
    assert load_run(tmp_path / "run").codes.merges == [("t", "h"), ("th", "e</w>")]


def test_import_keeps_the_splitting(tmp_path):
    splitting = Splitting("wikitext", lowercase=True)
    import_run(NEWEST, DICT, tmp_path / "run", splitting=splitting)
    assert load_run(tmp_path / "run").splitting == splitting
    import_run(NEWEST, DICT, tmp_path / "plain")
    assert load_run(tmp_path / "plain").splitting == PLAIN


def test_failed_import_leaves_nothing(tmp_path):
    (tmp_path / "cut.pt").write_bytes(NEWEST.read_bytes()[:-100])
    (tmp_path / "no-codes").write_text("t h\n")
    before = sorted(os.listdir(tmp_path))
    for checkpoint, dictionary, codes, name in (
        (tmp_path / "cut.pt", DICT, None, "cut.pt"),
        (tmp_path / "absent.pt", DICT, None, "absent.pt"),
        (DICT, DICT, None, "dict.txt: .*not a checkpoint"),
        (NEWEST, tmp_path / "cut.pt", None, "cut.pt"),
        (NEWEST, DICT, tmp_path / "no-codes", "no-codes"),
    ):
        with pytest.raises((ValueError, OSError), match=name):
            import_run(checkpoint, dictionary, tmp_path / "new" / "run", bpe_codes=codes)
    assert sorted(os.listdir(tmp_path)) == before
