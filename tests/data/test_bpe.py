import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data.bpe import Codes, join

COUNTS = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "<unk>": 50}
WORDS = st.text(st.sampled_from("low@erns</w>"), min_size=1, max_size=10)


def test_most_frequent_pairs_are_merged_first_as_in_the_published_example():
    # Sennrich et al.'s dictionary: "es" and "est" are the commonest, and end their words.
    codes = Codes.learn(COUNTS, 4)
    assert codes.merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]
    assert codes.split(["lowest"]) == [["lo@@", "w@@", "est"]]


def test_number_of_merges_is_exact_and_learning_is_repeatable():
    words = {f"{a}{b}{c}": 3 for a in "abcd" for b in "xyz" for c in "mn"}
    codes = Codes.learn(words, 7)
    assert len(codes.merges) == 7
    assert Codes.learn(dict(reversed(words.items())), 7).merges == codes.merges


def test_specials_stay_whole():
    assert Codes.learn(COUNTS, 5).split(["<unk>", "</s>"]) == [["<unk>"], ["</s>"]]


@settings(max_examples=200)
@given(st.lists(WORDS, max_size=8), st.integers(1, 30))
def test_pieces_join_back_and_only_the_last_ends_the_word(words, merges):
    codes = Codes.learn(dict.fromkeys(words, 3) | COUNTS | {"@@": 9, "x@@": 9}, merges)
    for word, pieces in zip(words, codes.split(words), strict=True):
        assert join(pieces) == word
        if word not in ("</s>", "<s>"):
            assert [piece.endswith("@@") for piece in pieces] == [True] * (len(pieces) - 1) + [
                False
            ]


def test_codes_of_subword_nmt_are_read_and_written(tmp_path):
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\ne s\nes t</w>\nl o\n")
    codes = Codes.load(path)
    assert codes.split(["lowest", "newest", "es"]) == [
        ["lo@@", "w@@", "est"],
        ["n@@", "e@@", "w@@", "est"],
        ["e@@", "s"],
    ]
    codes.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"e s\n", "not '#version: 0.2'"),
        (b"", "not '#version: 0.2'"),
        (b"#version: 0.2\n", "no codes"),
        (b"#version: 0.2\ne s\ne s t\n", "line 3"),
        (b"#version: 0.2\n\xff s\n", "not UTF-8 at byte 14"),
    ],
)
def test_bad_codes_are_refused(tmp_path, content, message):
    (tmp_path / "codes").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Codes.load(tmp_path / "codes")
