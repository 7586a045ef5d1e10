"""`data.json`: what was written is read, and what is wrong with it is named by file and field."""

import json

import pytest

from zipflm.data.folder import FORMAT, DataFacts, SplitFacts, read_facts
from zipflm.settings import from_dict, to_dict


@pytest.fixture(params=["words", "pieces"])
def facts(request, word_data, bpe_data) -> DataFacts:
    return (word_data if request.param == "words" else bpe_data).facts


def test_facts_survive_their_file(facts, tmp_path):
    (tmp_path / "data.json").write_text(json.dumps(to_dict(facts)))
    assert read_facts(tmp_path) == facts
    assert facts.format == FORMAT and (facts.bpe is None) == (facts.unit == "word")


def test_a_folder_without_facts_is_no_data_folder(tmp_path):
    with pytest.raises(ValueError, match=f"^{tmp_path}: no data folder .*make one: zipflm prepare"):
        read_facts(tmp_path)


def changed(facts, path, value):
    """The facts as a dictionary, with one value replaced, or taken out where it is Ellipsis."""
    values = to_dict(facts)
    *parents, last = path.split(".")
    place = values
    for name in parents:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("unit", "letters", "unit='letters': choose from word, bpe"),
        ("splits.valid.file", ..., "splits.valid.file: missing"),
        ("splits.valid.tokens", "many", "splits.valid.tokens='many': expected a whole number"),
        ("splits.valid.token", 3, "unknown key splits.valid.token: did you mean"),
        ("bpe", {"file": "bpe.codes"}, "bpe.merges: missing"),
        ("format", 1, f"format 1, this release reads {FORMAT}"),
        ("format", ..., f"format None, this release reads {FORMAT}"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(word_data, tmp_path, path, value, message):
    (tmp_path / "data.json").write_text(json.dumps(changed(word_data.facts, path, value)))
    with pytest.raises(ValueError) as error:
        read_facts(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'data.json'}: {message}")
    assert str(error.value).endswith("; prepare the data again")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_what_is_no_json_object_is_refused_by_file(tmp_path, content):
    (tmp_path / "data.json").write_bytes(content)
    with pytest.raises(ValueError, match="data.json: not (JSON|a JSON object); prepare the data"):
        read_facts(tmp_path)


@pytest.mark.parametrize("name", ["../valid.tokens", "/etc/passwd", "", ".."])
def test_a_token_file_lies_in_the_folder(word_data, name):
    values = to_dict(word_data.split("valid")) | {"file": name}
    with pytest.raises(ValueError, match="^file=.*: names no file of the folder"):
        from_dict(SplitFacts, values)
