"""Drawing from all words: in parts, and as `NextWord` does where nothing is left to chance.

That it follows the right distributions is tested with `NextWord`'s.
"""

import pytest
import torch

from zipflm import LanguageModel, preset
from zipflm.model import all_words
from zipflm.model.all_words import AllWords
from zipflm.model.next_word import NextWord


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LanguageModel(preset("tiny", "ADP-T")).eval()


@pytest.fixture
def hidden(model):
    return torch.randn(7, model.config.decoder.dim)


@pytest.mark.parametrize(
    "choice", [{"temperature": 0.0}, {"temperature": 1e-300}, {"top_k": 1}, {"top_p": 1e-9}]
)
def test_where_one_word_is_left_it_is_the_lazy_choice(model, hidden, choice):
    forbidden = torch.zeros(4000, dtype=torch.bool)
    forbidden[:3000] = True
    for mask in (None, forbidden):
        ids, log_probs = AllWords(model.output, mask).draw(hidden, **choice)
        expected_ids, expected = NextWord(model.output, mask).draw(hidden, **choice)
        assert ids.tolist() == expected_ids.tolist()
        torch.testing.assert_close(log_probs, expected)


def test_many_rows_are_drawn_in_parts(model, hidden, monkeypatch):
    whole, _ = AllWords(model.output).draw(hidden, temperature=0)
    monkeypatch.setattr(all_words, "_MOST_NUMBERS", 8_000)
    parts, _ = AllWords(model.output).draw(hidden, temperature=0)
    assert parts.tolist() == whole.tolist()


@pytest.mark.parametrize("choice", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}])
def test_choices_that_make_no_sense_are_refused(model, hidden, choice):
    with pytest.raises(ValueError, match=next(iter(choice))):
        AllWords(model.output).draw(hidden, **choice)
