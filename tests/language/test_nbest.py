import pytest
from language.nbest_lists import JSONL, KALDI, TSV, read

from zipflm.language.nbest import NBest, read_references


def test_kaldi_lists_are_grouped_by_what_stands_before_the_rank(write):
    first, second = read(write("list", KALDI), "kaldi")
    assert [(e.utterance, e.text, e.line) for e in first] == [
        ("utt-7", "a cat sat", 1),
        ("utt-7", "a cat", 2),
        ("utt-7", "", 3),
    ]
    assert [(e.utterance, e.words) for e in second] == [("b", ["the", "dog"])]


def test_json_lines_and_tables_are_known_by_their_endings(write):
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


def test_unknown_formats_are_refused_with_those_there_are(write):
    with pytest.raises(ValueError, match="--format htk: choose from kaldi, moses, jsonl, tsv"):
        NBest("list", "htk")
    with pytest.raises(ValueError, match="list.txt: of what --format is it: choose from kaldi"):
        NBest("list.txt")
    with pytest.raises(ValueError, match="--format tsv holds its scores itself"):
        NBest("list.tsv", scores={"ac": "file"})
    with pytest.raises(ValueError, match="ac is in --scores and in --costs"):
        NBest("list", "kaldi", scores={"ac": "file"}, costs={"ac": "file"})


def test_references_have_ids_or_the_order_of_sentences(write):
    plain = write("refs", "u1 a cat\nu2\n")
    assert read_references(plain, "kaldi") == {"u1": ["a", "cat"], "u2": []}
    assert read_references(plain, "moses") == {"0": ["u1", "a", "cat"], "1": ["u2"]}
    table = write("refs.tsv", "id\ttext\nu1\ta cat\n")
    assert read_references(table, "kaldi") == {"u1": ["a", "cat"]}
    lines = write("refs.jsonl", '{"id": 0, "text": "a cat"}\n')
    assert read_references(lines, "moses") == {"0": ["a", "cat"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("refs", "u1 a\nu1 b\n", "refs: line 2: utterance u1 is there twice"),
        ("refs.tsv", "id\ttext\nu1\ta\nu1\tb\n", "line 3: utterance u1 is there twice"),
        ("refs", "u1 a\n\n", "refs: line 2: empty; expected an id and its words"),
        ("refs", "u1\nu2\n", "refs: holds no words"),
    ],
)
def test_bad_references_are_refused(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_references(write(name, content), "kaldi")
