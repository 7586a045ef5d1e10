"""Files that read text differently are told apart by a few words in a config."""

import pytest

from zipflm.config import PLAIN, Splitting
from zipflm.data.bpe import Codes
from zipflm.data.encoding import TextEncoder
from zipflm.data.vocabulary import Vocabulary
from zipflm.interop.huggingface.config import TextFacts, parsed
from zipflm.settings import to_dict

WORDS = Vocabulary.from_counts({"ab": 3, "a": 2}, min_count=1)
CODES = Codes([("a", "b</w>")])
KNOWN = TextEncoder(WORDS, CODES, Splitting("words", True))


def test_facts_survive_json_and_recognise_what_they_are_of():
    facts = TextFacts.of(KNOWN)
    assert parsed(to_dict(facts)) == facts
    facts.require(TextEncoder(WORDS, Codes(CODES.merges), Splitting("words", True)))
    assert parsed(None) is None


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (TextEncoder(WORDS, None, Splitting("words", True)), "bpe.codes"),
        (TextEncoder(WORDS, Codes([("b", "a</w>")]), Splitting("words", True)), "bpe.codes"),
        (TextEncoder(WORDS, CODES, PLAIN), "splitting.json"),
        (
            TextEncoder(
                Vocabulary.from_counts({"ab": 4, "a": 2}, min_count=1),
                CODES,
                Splitting("words", True),
            ),
            "vocabulary.txt",
        ),
    ],
)
def test_what_differs_is_named(other, name):
    with pytest.raises(ValueError, match=f"{name}: missing, damaged or of another run"):
        TextFacts.of(KNOWN).require(other)


@pytest.mark.parametrize("values", [{}, {"vocabulary": 1, "codes": None, "splitting": {}}])
def test_nonsense_is_refused(values):
    with pytest.raises(ValueError, match="text"):
        parsed(values)
