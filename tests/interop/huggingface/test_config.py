import json

import pytest
from transformers import AutoConfig

from zipflm import preset
from zipflm.interop.huggingface import ZipfConfig
from zipflm.settings import to_dict


@pytest.mark.parametrize("label", ["SM", "BPE-T", "CNN", "ADP-T"])
def test_config_round_trip(label, tmp_path):
    native = preset("tiny", label)
    ZipfConfig.of(native, updates=12).save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(read, ZipfConfig)
    assert read.native == native and read.updates == 12


def test_standard_field_names():
    native = preset("tiny", "ADP-T")
    config = ZipfConfig.of(native)
    assert (config.vocab_size, config.hidden_size) == (native.vocab_size, native.decoder.dim)
    assert config.num_hidden_layers == native.decoder.num_layers
    assert config.max_position_embeddings == native.batches.eval_block
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (2, 2, 1)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 65}, "hidden_size=65: the field zipflm implies 64"),
        ({"zipflm": {"vocab_size": 3}}, "zipflm.*missing"),
        ({"zipflm": to_dict(preset("tiny", "SM")) | {"layers": 3}}, "unknown key zipflm.layers"),
    ],
)
def test_rejects_inconsistent_config(changes, message, tmp_path):
    ZipfConfig.of(preset("tiny", "ADP-T")).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        AutoConfig.from_pretrained(tmp_path)
