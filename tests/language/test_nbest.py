import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from language.nbest_lists import JSONL, KALDI, MOSES, TSV, read

from zipflm.language.nbest import (
    JsonLines,
    Kaldi,
    Moses,
    Table,
    open_format,
    read_lists,
    read_references,
)


def test_groups_kaldi_lists_by_utterance(write):
    first, second = read(write("list", KALDI), "kaldi")
    assert [(e.utterance, e.text, e.line) for e in first] == [
        ("utt-7", "a cat sat", 1),
        ("utt-7", "a cat", 2),
        ("utt-7", "", 3),
    ]
    assert [(e.utterance, e.words) for e in second] == [("b", ["the", "dog"])]


def test_detects_formats_by_file_name(write):
    first, second = read(write("list.jsonl", JSONL))
    assert [(e.utterance, e.text, e.scores) for e in (*first, *second)] == [
        ("u1", "a cat", {"ac": -3.5}),
        ("u1", "", {"ac": -4}),
        ("2", "the d\u00f6g", {"ac": 1}),
    ]
    first, second = read(write("list.tsv", TSV))
    assert [(e.utterance, e.text, e.scores) for e in (*first, *second)] == [
        ("u1", "a cat", {"ac": -3.5, "graph": 100}),
        ("u1", "", {"ac": -4, "graph": 0}),
        ("u2", "the dog", {"ac": 0, "graph": -1}),
    ]


def test_rejects_unknown_formats(write):
    with pytest.raises(ValueError, match="--format htk: choose from kaldi, moses, jsonl, tsv"):
        open_format("list", "htk")
    with pytest.raises(ValueError, match="list.txt: needs --format: choose from kaldi"):
        open_format("list.txt", None)
    with pytest.raises(ValueError, match="--scores, --costs: only for --format kaldi"):
        open_format("list.tsv", None, scores={"ac": "file"})


def test_reads_references(write):
    plain = write("refs", "u1 a cat\nu2\n")
    assert read_references(plain, Kaldi({}, {})) == {"u1": ["a", "cat"], "u2": []}
    assert read_references(plain, Moses()) == {"0": ["u1", "a", "cat"], "1": ["u2"]}
    table = write("refs.tsv", "id\ttext\nu1\ta cat\n")
    assert read_references(table, Table()) == {"u1": ["a", "cat"]}
    lines = write("refs.jsonl", '{"id": 0, "text": "a cat"}\n')
    assert read_references(lines, JsonLines()) == {"0": ["a", "cat"]}


def test_groups_hypotheses_that_are_not_consecutive(write):
    first, second = read(write("list", "u-1 a\nv-1 a\nu-2 b\n"), "kaldi")
    assert [entry.text for entry in first] == ["a", "b"] and len(second) == 1


def test_kaldi_companion_files(write):
    values = "utt-7-2 -1\nutt-7-1 3.5\nutt-7-10 0\nb-1\t7\n"
    name, companion = write("list", KALDI), write("ac", values)
    first, second = read(name, "kaldi", scores={"ac": companion}, costs={"am": companion})
    assert [e.scores for e in (*first, *second)] == [
        {"ac": 3.5, "am": -3.5},
        {"ac": -1, "am": 1},
        {"ac": 0, "am": 0},
        {"ac": 7, "am": -7},
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("utt-7-1 3.5\nutt-7-10 1\n", "list: line 2: .*ac has no score of utt-7-2"),
        ("utt-7-1 3.5\nutt-7-2\n", "ac: line 2: the score must be a finite number, not ''"),
        ("b-1 1\nb-1 2\n", "ac: line 2: b-1 is repeated"),
        ("utt-7-1 nan\n", "ac: line 1: the score must be a finite number, not 'nan'"),
    ],
)
def test_rejects_companion_files_that_do_not_match(write, values, message):
    with pytest.raises(ValueError, match=message):
        read(write("list", KALDI), "kaldi", scores={"ac": write("ac", values)})


def test_moses_features(write):
    first, second = read(write("list", MOSES), "moses")
    assert first[0].scores == {"LM0": -9.5, "TM0.1": -1, "TM0.2": -2, "total": -12.5}
    assert [e.text for e in first] == ["a cat sat", "a cat"]
    assert (second[0].utterance, second[0].text) == ("1", "")
    ((old,),) = read(write("old", "3 ||| a ||| d: 0 lm: -4 w: 1e1 ||| 2\n"), "moses")
    assert old.scores == {"d": 0, "lm": -4, "w": 10, "total": 2}
    ((tight,),) = read(write("tight", "3|||a|||d=0 lm=-4|||2\n"), "moses")
    assert tight.scores == {"d": 0, "lm": -4, "total": 2}


@pytest.mark.parametrize(
    ("format", "content", "message"),
    [
        ("kaldi", "u-1 a\nu a\n", "list: line 2: u does not have the form"),
        ("kaldi", b"u-1 a\nu-2 \xff\n", "line 2: not UTF-8"),
        ("kaldi", "", "list: empty"),
        (
            "moses",
            "0 ||| a ||| f= 1 ||| 2\n0 ||| a ||| f= 1\n",
            "line 2: has 3 of at least 4",
        ),
        ("moses", "0 ||| a ||| f= x ||| 2\n", "line 1: the feature f must be a finite .* 'x'"),
        ("moses", "0 ||| a ||| 1 ||| 2\n", "line 1: '1' has no name before it"),
        ("moses", "0 ||| a ||| f= 1 ||| inf\n", "line 1: the total must be a finite number"),
        ("jsonl", '{"id": "u", "text": "a"}\n{"id": "u"}\n', 'line 2: needs an "id" .* a "text"'),
        ("jsonl", '["u", "a"]\n', "line 1: is not a JSON object"),
        ("jsonl", '{"id": "u", "text": "\\ud800"}\n', "line 1: has half of a surrogate pair"),
        ("jsonl", '{"id": "u", "text": "a", "scores": [1]}\n', "line 1: needs an"),
        ("jsonl", '{"id": "u", "text": "a", "scores": {"ac": "x"}}\n', "line 1: the score ac must"),
        ("jsonl", '{"id": "u", "text": "a", "scores": {"a": 1' + "0" * 400 + "}}\n", "the score a"),
        ("tsv", "id\ttext\tac\nu\ta\t1\nu\ta\n", "line 3: has 2 fields, but the header has 3"),
        ("tsv", "id\ttext\tac\nu\ta\t\n", "line 2: the column ac must be a finite number, not ''"),
        ("tsv", "id\ttxt\nu\ta\n", "line 1: must be a header with id, text"),
        ("tsv", "id\ttext\n", "list: contains no hypotheses"),
        ("tsv", "id\ttext\tac\tac\n", "line 1: must have each column once"),
    ],
)
def test_rejects_bad_entries_with_file_and_line(write, format, content, message):
    with pytest.raises(ValueError, match=message):
        read(write("list", content), format)


@pytest.mark.parametrize(
    ("name", "content"), [("refs", "u1 a\nu2 c\nu1 b\n"), ("refs.tsv", "id\ttext\nu1\ta\nu1\tb\n")]
)
def test_rejects_repeated_references(write, name, content):
    lists = Table()
    with pytest.raises(ValueError, match="line 3: utterance u1 is repeated"):
        read_references(write(name, content), lists)


def test_writes_lists_with_new_scores(write):
    new = {"lm": -1.25, "total": 7.0}

    def written(name, format):
        chosen = open_format(name, format)
        entries = [entry for each in read_lists(name, chosen) for entry in each]
        header = chosen.format_header(("lm", "total"))
        lines = [chosen.format_line(entry, new) for entry in entries]
        return [header, *lines] if header else lines

    assert written(write("a", KALDI), "kaldi") == KALDI.splitlines()
    assert written(write("a", MOSES), "moses") == [
        "0 ||| a cat sat ||| LM0= -9.5 TM0= -1 -2 lm= -1.250000 ||| 7.000000 ||| 0-0 1-1",
        "0 ||| a cat ||| LM0= -8 TM0= -1 -3 lm= -1.250000 ||| 7.000000 ||| 0-0",
        "1 |||  ||| LM0= -8 TM0= -1 -3 lm= -1.250000 ||| 7.000000 ||| ",
    ]
    first, *_, last = map(json.loads, written(write("a", JSONL), "jsonl"))
    assert first["speaker"] == "x" and first["scores"] == {"ac": -3.5} | new
    assert last["id"] == 2 and last["text"] == "the d\u00f6g"
    assert written(write("a", TSV), "tsv")[:2] == [
        "id\tac\ttext\tgraph\tlm\ttotal",
        "u1\t-3.5\ta cat\t1e2\t-1.250000\t7.000000",
    ]
    total = "id\ttotal\ttext\nu1\t-3.5\ta cat\n"
    assert written(write("a", total), "tsv") == [
        "id\ttotal\ttext\tlm",
        "u1\t7.000000\ta cat\t-1.250000",
    ]


def test_round_trip(write):
    for format, content in (("moses", MOSES), ("jsonl", JSONL), ("tsv", TSV)):
        chosen, name = open_format("a", format), write("a", content)
        entries = [entry for each in read_lists(name, chosen) for entry in each]
        lines = [chosen.format_line(entry, {"lm": 1.0, "total": 2.0}) for entry in entries]
        header = chosen.format_header(("lm", "total"))
        again = read(write("b", "\n".join([header, *lines] if header else lines) + "\n"), format)
        assert [(e.utterance, e.text) for each in again for e in each] == [
            (e.utterance, e.text) for e in entries
        ]
        assert all(e.scores["lm"] == 1 and e.scores["total"] == 2 for each in again for e in each)


PARTS = ["|||", "=", "f=", " ", "\t", "u-1", "u-2", "1", "-1e9", "nan", '"', "{", "}", "[", "]"]
PARTS += [":", ",", '"id"', '"text"', '"scores"', '"u"', "null", "id", "text", "\n", "\r", "\0"]
PARTS += ["\ud800".encode("utf-8", "surrogatepass"), "9" * 5000, "\u00e9", "\u2028"]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    st.lists(st.sampled_from(PARTS), max_size=25),
    st.sampled_from([KALDI, MOSES, JSONL, TSV, ""]),
    st.sampled_from(["kaldi", "moses", "jsonl", "tsv"]),
)
def test_reads_or_rejects_any_file(write, parts, begin, format):
    content = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    try:
        utterances = read(write("list", begin.encode() + content), format)
    except ValueError as error:
        assert "list: " in str(error) and len(str(error)) < 1000
    else:
        assert all(entry.line for each in utterances for entry in each)
