import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from language.nbest_lists import JSONL, KALDI, MOSES, TSV, read

from zipflm.language.nbest import NBest


def test_kaldi_scores_come_from_companion_files_and_costs_with_the_other_sign(write):
    values = "utt-7-1 3.5\nutt-7-2 -1\nutt-7-10 0\nb-1\t7\n"
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
        ("utt-7-1 3.5\nutt-7-10 1\n", "list: line 2: .*ac: line 2 should be utt-7-2 and a number"),
        ("utt-7-1 3.5\nutt-7-2\n", "list: line 2: .*ac: line 2 should be utt-7-2 and a number"),
        ("utt-7-1 3.5\n", "list: line 2: .*ac has ended"),
        ("utt-7-1 nan\n", "ac: line 1 must be a finite number, not 'nan'"),
        ("utt-7-1 1\nutt-7-2 1\nutt-7-10 1\nb-1 1\nb-2 1\n", "ac: line 5: .* of no hypothesis"),
    ],
)
def test_companion_files_must_go_with_the_list(write, values, message):
    with pytest.raises(ValueError, match=message):
        read(write("list", KALDI), "kaldi", scores={"ac": write("ac", values)})


def test_moses_features_are_scores_and_those_with_several_values_are_numbered(write):
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
        ("kaldi", "u-1 a\n\n", "list: line 2: '' is not an utterance, a hyphen and a rank"),
        ("kaldi", "u-1 a\nu a\n", "list: line 2: u is not an utterance"),
        ("kaldi", "1272-0000 a\n", "line 1: 1272-0000 is not an utterance"),
        ("kaldi", "u-1 a\nu-2 a\nu-1 b\n", "line 3: hypothesis u-1 is there twice"),
        ("kaldi", "u-1 a\nv-1 a\nu-2 b\n", "line 3: utterance u began at line 1, and others"),
        ("kaldi", b"u-1 a\nu-2 \xff\n", "line 2: not UTF-8"),
        ("kaldi", b"u-1 a\nu-2 \0\n", "line 2: a NUL byte"),
        ("kaldi", "", "list: empty"),
        ("moses", "0 ||| a ||| f= 1 ||| 2\n0 ||| a ||| f= 1\n", "line 2: has 3 fields, not 4"),
        ("moses", "||| a ||| f= 1 ||| 2\n", "line 1: the id must be a word without spaces, not ''"),
        ("moses", "0 ||| a ||| f= x ||| 2\n", "line 1: the feature f must be a finite .* 'x'"),
        ("moses", "0 ||| a ||| f= g= 1 ||| 2\n", "line 1: the feature f has no value"),
        ("moses", "0 ||| a ||| f= 1 f= 1 ||| 2\n", "line 1: has the feature f twice"),
        ("moses", "0 ||| a ||| 1 ||| 2\n", "line 1: '1' comes before the name of a feature"),
        ("moses", "0 ||| a ||| f= 1 ||| inf\n", "line 1: the total must be a finite number"),
        ("moses", "0 ||| a ||| total= 1 ||| 2\n", "line 1: has a feature total beside"),
        ("jsonl", '{"id": "u", "text": "a"}\n{"id": "u"}\n', 'line 2: "text" must be a string'),
        ("jsonl", '{"text": "a"}\n', 'line 1: "id" must be a string or a whole number, not None'),
        ("jsonl", '{"id": true, "text": "a"}\n', 'line 1: "id" must be'),
        ("jsonl", '{"id": "u v", "text": "a"}\n', "line 1: the id must be a word without spaces"),
        ("jsonl", '["u", "a"]\n', "line 1: is not a JSON object"),
        ("jsonl", '{"id": "u", "text": "\\ud800"}\n', "line 1: holds half a surrogate pair"),
        ("jsonl", '{"id": "u", "text": "a", "x": ["\\uD800"]}\n', "line 1: holds half a surrogate"),
        ("jsonl", '{"id": "u", "text": "\\u0000"}\n', "line 1: holds a NUL"),
        ("jsonl", '{"id": "u"\n', "line 1: is not a JSON object"),
        ("jsonl", "[" * 100_000 + "\n", "line 1: is not a JSON object"),
        ("jsonl", '{"id": "u", "text": "a", "scores": [1]}\n', 'line 1: "scores" must be an obj'),
        ("jsonl", '{"id": "u", "text": "a", "scores": {"ac": "x"}}\n', "line 1: the score ac must"),
        ("jsonl", '{"id": "u", "text": "a", "scores": {"ac": NaN}}\n', "line 1: the score ac must"),
        ("jsonl", '{"id": "u", "text": "a", "scores": {"ac": true}}\n', "the score ac must be"),
        ("jsonl", '{"id": "u", "text": "a", "scores": {"a": 1' + "0" * 400 + "}}\n", "the score a"),
        (
            "jsonl",
            '{"id": "u", "text": "a", "scores": {"words": 1}}\n',
            "line 1: has a score words",
        ),
        ("tsv", "id\ttext\tac\nu\ta\t1\nu\ta\n", "line 3: has 2 fields, the header 3"),
        ("tsv", "id\ttext\tac\nu\ta\t\n", "line 2: the column ac must be a finite number, not ''"),
        ("tsv", "id\ttxt\nu\ta\n", "line 1: has no column text"),
        ("tsv", "id\ttext\tac\tac\n", "line 1: the column 'ac' is there twice"),
        ("tsv", "id\ttext\t\n", "line 1: the column '' is there twice or has no name"),
        ("tsv", "id\ttext\n", "list: holds no hypothesis"),
        ("tsv", "id\ttext\n\ta\n", "line 2: the id must be a word without spaces, not ''"),
    ],
)
def test_bad_entries_are_refused_with_file_and_line(write, format, content, message):
    with pytest.raises(ValueError, match=message):
        read(write("list", content), format)


def test_all_hypotheses_of_json_lines_must_have_the_same_scores(write):
    line = '{{"id": "u", "text": "a", "scores": {}}}\n'.format
    with pytest.raises(ValueError, match="line 2: has no score ac; all"):
        read(write("list.jsonl", line('{"ac": 1}') + line("{}")))
    with pytest.raises(ValueError, match="line 2: alone has a score am; all"):
        read(write("list.jsonl", line('{"ac": 1}') + line('{"ac": 1, "am": 1}')))


def test_what_was_read_is_written_back_with_new_scores(write):
    new = {"lm": -1.25, "total": 7.0}

    def written(name, format):
        nbest = NBest(name, format)
        entries = [entry for each in nbest.utterances() for entry in each]
        header = nbest.format.header(("lm", "total"))
        lines = [nbest.format.line(entry, new) for entry in entries]
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


def test_what_is_written_can_be_read_again(write):
    for format, content in (("moses", MOSES), ("jsonl", JSONL), ("tsv", TSV)):
        nbest = NBest(write("a", content), format)
        entries = [entry for each in nbest.utterances() for entry in each]
        lines = [nbest.format.line(entry, {"lm": 1.0, "total": 2.0}) for entry in entries]
        header = nbest.format.header(("lm", "total"))
        again = read(write("b", "\n".join([header, *lines] if header else lines) + "\n"), format)
        assert [(e.utterance, e.text) for each in again for e in each] == [
            (e.utterance, e.text) for e in entries
        ]
        assert all(e.scores["lm"] == 1 and e.scores["total"] == 2 for each in again for e in each)


PARTS = ["|||", "=", "f=", " ", "\t", "u-1", "u-2", "1", "-1e9", "nan", '"', "{", "}", "[", "]"]
PARTS += [":", ",", '"id"', '"text"', '"scores"', '"u"', "null", "id", "text", "\n", "\r", "\0"]
PARTS += ["\ud800".encode("utf-8", "surrogatepass"), "9" * 5000, "\u00e9", "\u2028"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    st.lists(st.sampled_from(PARTS), max_size=25),
    st.sampled_from([KALDI, MOSES, JSONL, TSV, ""]),
    st.sampled_from(["kaldi", "moses", "jsonl", "tsv"]),
)
def test_whatever_a_file_holds_is_read_or_refused(write, parts, begin, format):
    content = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    try:
        utterances = read(write("list", begin.encode() + content), format)
    except ValueError as error:
        assert "list: " in str(error) and len(str(error)) < 1000
    else:
        assert all(entry.utterance and entry.line for each in utterances for entry in each)
