import json

import pytest
import torch
from loaded_models import loaded
from safetensors import safe_open
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging
from transformers.utils.generic import find_labels

from zipflm import LanguageModel, preset
from zipflm.interop.huggingface import ZipfConfig, ZipfForCausalLM
from zipflm.interop.huggingface.exchange import model_of
from zipflm.presets import FACTORIZATIONS
from zipflm.runs.load import load_run


@pytest.fixture(autouse=True)
def _quietly():
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture(params=["sinusoidal", "rotary"])
def model(request, word_data):
    overrides = [f"decoder.positions={request.param}"]
    return model_of(loaded(word_data, "ADP-T", overrides).run)


def padded(words, number, side):
    padding = torch.full((len(words), number), 1)
    parts = [padding, words] if side == "left" else [words, padding]
    mask = torch.cat(parts, 1) != 1
    return torch.cat(parts, 1), mask.long()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("label", FACTORIZATIONS)
@torch.no_grad()
def test_matches_the_native_model(label, dtype, runs, exported, words):
    model = AutoModelForCausalLM.from_pretrained(exported[label], dtype=dtype)
    native = load_run(runs[label]).model.to(dtype)
    assert model.dtype == dtype and not model.training
    words = words.clamp(max=model.config.vocab_size - 1)
    expected = native.log_probs(words)
    torch.testing.assert_close(model(words).logits, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(expected.exp().sum(-1), torch.ones(3, 9), atol=1e-5, rtol=0)
    loss = model(words, labels=words).loss
    mean = native.nll(words[:, :-1], words[:, 1:]).mean()
    torch.testing.assert_close(loss, mean, atol=1e-6, rtol=0)


@pytest.mark.parametrize("label", FACTORIZATIONS)
def test_every_weight_is_saved_once(label, exported):
    config = ZipfConfig.from_pretrained(exported[label]).native
    saved = {}
    for path in exported[label].glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                assert name not in saved
                saved[name] = file.get_tensor(name)
    spellings = saved.pop("model.input.spellings_VC", None)
    assert (spellings is not None) == (label == "CNN")
    assert sum(tensor.numel() for tensor in saved.values()) == config.num_params()
    assert len(list(exported[label].glob("*.safetensors"))) == 1 or label in ("ADP-T", "CNN")


@torch.no_grad()
def test_labels_return_loss_without_logits(model, words, monkeypatch):
    monkeypatch.setattr(model.model.output, "log_probs", lambda *_: pytest.fail("all words"))
    output = model(words, labels=words)
    assert output.logits is None and output.past_key_values is None
    assert model(words, labels=words, return_dict=False) == (output.loss,)


@torch.no_grad()
def test_return_logits_and_logits_to_keep(model, words):
    everything = model(words).logits
    assert model(words, labels=words, return_logits=True).logits.equal(everything)
    kept = model(words, labels=words, logits_to_keep=2).logits
    torch.testing.assert_close(kept, everything[:, -2:])
    kept = model(words, logits_to_keep=torch.tensor([0, 3])).logits
    torch.testing.assert_close(kept, everything[:, [0, 3]])
    model.config.return_logits = True
    assert model(words, labels=words).logits.equal(everything)


@torch.no_grad()
def test_labels_are_shifted_and_ignored(model, words):
    labels = words.clone()
    labels[0, 3:] = -100
    labels[1, 0] = -100  # the first label is never scored
    scored = labels[:, 1:] != -100
    nll = model.model.nll(words[:, :-1], words[:, 1:])
    torch.testing.assert_close(model(words, labels=labels).loss, nll[scored].mean())
    assert model(words, labels=torch.full_like(words, -100)).loss == 0
    assert model(words[:, :1], labels=words[:, :1]).loss == 0


def test_gradient_accumulation_matches_whole_batch(model, words):
    labels = words.clone()
    labels[0, 3:] = -100  # batches with different numbers of words
    model(words, labels=labels).loss.backward()
    whole = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    number = (labels[:, 1:] != -100).sum()
    for row in range(3):
        part = slice(row, row + 1)
        model(words[part], labels=labels[part], num_items_in_batch=number).loss.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, whole[name], msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("use_cache", [False, True])
@torch.no_grad()
def test_padding_changes_nothing(model, words, side, use_cache):
    expected = model(words).logits
    more, mask = padded(words, 4, side)
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # as generate() computes them
    options = {"attention_mask": mask, "position_ids": positions}
    output = model(more, use_cache=use_cache, **options)
    own = output.logits[:, 4:] if side == "left" else output.logits[:, :-4]
    torch.testing.assert_close(own, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(output.logits[:, -1], expected[:, -1], atol=2e-5, rtol=0)
    # Labels on padding, and the </s> after it, are not scored.
    loss = model(more, attention_mask=mask, labels=more).loss
    torch.testing.assert_close(loss, model(words, labels=words).loss)


@torch.no_grad()
def test_cache_matches_whole_input(model, words):
    expected = model(words).logits
    first = model(words[:, :4], use_cache=True)
    second = model(words[:, 4:7], past_key_values=first.past_key_values)
    third = model(words[:, 7:8], past_key_values=second.past_key_values)
    got = torch.cat([first.logits, second.logits, third.logits], 1)
    torch.testing.assert_close(got, expected[:, :8], atol=2e-5, rtol=0)
    assert third.past_key_values.get_seq_length() == 8


def written(model, words, mask=None, **options):
    options = {"max_new_tokens": 7, "eos_token_id": None, "do_sample": False} | options
    return model.generate(words, attention_mask=mask, **options)[:, words.shape[1] :]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_with_cache_and_padding(model, words, options):
    expected = written(model, words, use_cache=False, **options)
    assert written(model, words, **options).equal(expected)
    for side in ("left", "right"):
        assert written(model, *padded(words, 3, side), **options).equal(expected)


def test_greedy_generation_matches_the_run(word_data):
    lm = loaded(word_data, "ADP-T")
    model = model_of(lm.run)
    (text,) = lm.generate(temperature=0, max_words=8, lines=0)
    ids = written(model, torch.tensor([[2]]), max_new_tokens=len(text.words))
    assert [word.word for word in text.words] == [lm.vocabulary.words[id] for id in ids[0]]


def test_samples_follow_the_distribution(word_data):
    model = model_of(loaded(word_data, "ADP-T", sharpness=1.0).run)
    start = torch.tensor([[2]]).expand(4000, -1)
    drawn = written(model, start, do_sample=True, max_new_tokens=1, top_k=0)[:, 0]
    allowed = model(start[:1]).logits[0, 0].detach().exp()
    allowed[model.generation_config.suppress_tokens] = 0
    share = torch.bincount(drawn, minlength=len(allowed)) / len(drawn)
    assert (share - allowed / allowed.sum()).abs().max() < 0.03
    assert not set(drawn.tolist()) & set(model.generation_config.suppress_tokens)
    assert {0, 1, 3} <= set(model.generation_config.suppress_tokens)


def test_rejects_missing_weights(exported, tmp_path):
    for path in exported["ADP-T"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["zipflm"]["decoder"]["num_layers"] = config["num_hidden_layers"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="missing keys: model.decoder.layers.2"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="missing keys: model.decoder.layers.2"):
        ZipfForCausalLM.from_pretrained(pretrained_model_name_or_path=tmp_path)


def test_new_model_matches_native_initialization():
    config = preset("tiny", "ADP-T")
    torch.manual_seed(5)
    native = LanguageModel(config).state_dict()
    torch.manual_seed(5)
    ours = AutoModelForCausalLM.from_config(ZipfConfig.of(config)).model.state_dict()
    assert ours.keys() == native.keys()
    assert all(ours[name].equal(native[name]) for name in native)
    with pytest.raises(ValueError, match="character input needs the bytes of every word"):
        ZipfForCausalLM(ZipfConfig.of(preset("tiny", "CNN")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "input_ids, inputs_embeds"),
        ({"input_ids": torch.tensor([2, 5])}, r"input_ids.shape=\(2,\)"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "at least one"),
        ({"input_ids": torch.tensor([[2, 9_999]])}, "words=9999: outside the vocabulary"),
        ({"input_ids": torch.tensor([[2.0]])}, "word ids are integers"),
        ({"input_ids": torch.tensor([[2]]), "labels": torch.ones(1, 2)}, "labels.shape"),
        (
            {"input_ids": torch.tensor([[2, 5]]), "position_ids": torch.tensor([[0, 0]])},
            "position_ids: positions follow",
        ),
        (
            {"input_ids": torch.tensor([[2, 5]]), "attention_mask": torch.ones(1, 3)},
            r"attention_mask.shape=\(1, 3\).*\(1, 2\)",
        ),
    ],
)
def test_rejects_invalid_input(word_data, arguments, message):
    model = model_of(loaded(word_data, "ADP-T").run)
    with pytest.raises(ValueError, match=message):
        model(**arguments)


def test_rejects_misspelled_arguments(model, words):
    with pytest.raises(TypeError, match="lables"):
        model(words, lables=words)
    with pytest.raises(ValueError, match="tempreature"):
        model.generate(words, tempreature=0.5)


def test_trainer_finds_labels():
    assert find_labels(ZipfForCausalLM) == ["labels"]


@torch.no_grad()
def test_shift_labels(model, words):
    shifted = torch.cat([words[:, 1:], torch.full((3, 1), -100)], 1)
    expected = model(words, labels=words).loss
    torch.testing.assert_close(model(words, shift_labels=shifted).loss, expected)
    torch.testing.assert_close(model(words, labels=words, shift_labels=shifted).loss, expected)
    assert model(words, shift_labels=words).loss != expected


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_output_attentions(model, words, side):
    more, mask = padded(words, 2, side)
    expected = model(more, attention_mask=mask)
    output = model(more, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(output.logits, expected.logits, atol=2e-5, rtol=0)
    assert [weights.shape for weights in output.attentions] == [(3, 4, 11, 11)] * 2
    for weights in output.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 11))
        assert not weights.triu(1).any()
        is_word = mask.bool()
        assert not weights[0, 0][is_word[0]][:, ~is_word[0]].any()
    assert len(output.hidden_states) == 3
    logits = model.model.output.log_probs(output.hidden_states[-1])
    torch.testing.assert_close(logits[mask.bool()], output.logits[mask.bool()])
    assert expected.attentions is None and expected.hidden_states is None
    model.set_attn_implementation("eager")
    assert model(more, attention_mask=mask).logits.equal(output.logits)


def test_inputs_embeds(model, words):
    vectors = model.get_input_embeddings()(words).detach().requires_grad_()
    output = model(inputs_embeds=vectors, labels=words)
    assert output.loss.equal(model(words, labels=words).loss)
    output.loss.backward()
    assert vectors.grad.abs().sum() > 0
    generated = model.generate(
        inputs_embeds=vectors.detach(), max_new_tokens=7, eos_token_id=None, do_sample=False
    )
    assert generated.equal(written(model, words))


def test_input_layer_can_be_hooked_and_replaced(model, words):
    layer = model.get_input_embeddings()
    assert model.get_submodule("embeddings.word_embeddings") is layer  # where PEFT looks
    expected = model(words).logits
    with layer.register_forward_hook(lambda *call: call[2] + 1):  # as NEFTune does
        assert not model(words).logits.equal(expected)
    model.set_input_embeddings(torch.nn.Sequential(layer))
    assert model(words).logits.equal(expected)


def test_gradient_checkpointing(model, words):
    def step():
        kept = []
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            loss = model(words, labels=words).loss
        loss.backward()
        return sum(x.numel() for x in kept), [p.grad.clone() for p in model.parameters()]

    all_kept, expected = step()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    some_kept, gradients = step()
    assert some_kept < 0.7 * all_kept
    torch.testing.assert_close(gradients, expected)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing and step()[0] == all_kept


@pytest.mark.slow
@torch.no_grad()
def test_masks_can_be_compiled_and_exported(model, words):
    more, mask = padded(words, 2, "left")
    expected = model(more, attention_mask=mask).logits
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    logits = compiled(more, attention_mask=mask).logits
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)
    inputs = {"input_ids": more, "attention_mask": mask}
    program = torch.export.export(model, (), inputs).module()
    torch.testing.assert_close(program(**inputs).logits, expected, atol=2e-5, rtol=0)
    unpadded = program(input_ids=more, attention_mask=torch.ones_like(mask)).logits
    torch.testing.assert_close(unpadded, model(more).logits, atol=2e-5, rtol=0)


def test_rejects_resizing_and_static_cache(word_data, words):
    model = model_of(loaded(word_data, "ADP-T").run)
    assert model.resize_token_embeddings(model.config.vocab_size) is model.get_input_embeddings()
    with pytest.raises(ValueError, match="new_num_tokens=9: the vocabulary"):
        model.resize_token_embeddings(9)
    with pytest.raises(ValueError, match="a StaticCache does not return exactly"):
        written(model, words, cache_implementation="static")
    cache = DynamicCache()
    written(model, words, past_key_values=cache)
    assert cache.get_seq_length() == words.shape[1] + 6
