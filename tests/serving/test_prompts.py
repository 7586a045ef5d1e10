import pytest
from loaded_models import loaded
from small_data import make_folder

from zipflm.config import Splitting
from zipflm.serving.errors import Refusal
from zipflm.serving.models import served
from zipflm.serving.prompts import read_prompts, spelled


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("text", ["ba", "ba be noro", "ba\nbe bu", "ba\n\nbu\n"])
def test_ids_of_a_text_are_spelt_as_the_text(models, name, text):
    model = models[name]
    (of_text,) = read_prompts(model, text)
    (of_ids,) = read_prompts(model, of_text.tokens.tolist())
    assert of_ids.text == text and of_ids.words == of_text.words
    assert of_ids.ids.tolist() == of_text.ids.tolist()
    assert len(of_ids.offsets) == len(of_text.offsets) == len(of_text.tokens)


def test_the_start_of_every_text_may_be_given_or_not(words):
    for value in ("</s> ba be", [2, 4, 5]):
        (prompt,) = read_prompts(words, value)
        assert prompt.has_start and prompt.ids.tolist() == [4, 5] and len(prompt.tokens) == 3
    (alone,) = read_prompts(words, "</s>")
    assert alone.has_start and not len(alone.ids)


def test_the_start_is_found_whatever_the_rule_that_splits_words(tmp_path):
    data = make_folder(tmp_path, "split", splitting=Splitting("words"))
    model = served("split", loaded(data))
    first = model.reader.prefix("ba, be").tolist()
    (prompt,) = read_prompts(model, "</s> ba, be")
    assert prompt.tokens.tolist() == [2, *first] and prompt.offsets == [0, 5, 7, 9]
    (prompt,) = read_prompts(model, "</s>\nba")
    assert prompt.tokens.tolist() == [2, 2, *first[:1]]
    (prompt,) = read_prompts(model, "</s>ba")
    assert not prompt.has_start


def test_an_empty_first_line_is_not_the_start(words):
    (prompt,) = read_prompts(words, "\nba")
    assert not prompt.has_start and prompt.ids.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("prompt", "words_of_line", "is_tight"),
    [("ba be", ["ba", "be"], False), ("ba\nbe", ["be"], False), ("ba ", ["ba"], True)],
)
def test_what_follows_knows_the_line_it_follows(words, prompt, words_of_line, is_tight):
    (found,) = read_prompts(words, prompt)
    assert found.words == words_of_line and found.is_tight is is_tight


def test_pieces_of_a_word_stand_behind_each_other(pieces):
    (prompt,) = read_prompts(pieces, "ba noro be")
    assert len(prompt.tokens) > 3
    starts = dict(zip(prompt.offsets, prompt.tokens.tolist(), strict=True))
    assert {0, 3, 8} <= set(starts) and prompt.offsets == sorted(prompt.offsets)


def test_a_prompt_may_end_within_a_word(pieces):
    names = pieces.lm.vocabulary.words
    begun = next(token for token, name in enumerate(names) if name.endswith("@@"))
    (prompt,) = read_prompts(pieces, [4, begun])
    assert prompt.text == f"ba {names[begun].removesuffix('@@')}" and prompt.is_tight
    assert spelled(pieces.reader, [4, begun])[2]


@pytest.mark.parametrize("value", [5, {}, [], [[]], "", " ", [None], [1.5], [4, "ba"], ["ba", ""]])
def test_anything_else_is_refused(words, value):
    with pytest.raises(Refusal) as caught:
        read_prompts(words, value)
    assert caught.value.status == 400 and caught.value.param == "prompt"
