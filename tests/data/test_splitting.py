import re
from itertools import islice

import pytest
from addresses import addresses
from hypothesis import example, given
from hypothesis import strategies as st

from zipflm.config import Splitting
from zipflm.data import splitting as module
from zipflm.data.splitting import Joiner, Splitter, WordSpan
from zipflm.data.vocabulary import SPECIALS

RULES = ("whitespace", "words", "wikitext")
SPLITTERS = {
    (rule, lowercase): Splitter(Splitting(rule, lowercase))
    for rule in RULES
    for lowercase in (False, True)
}
PARTS = st.sampled_from(
    [*"aZ\u00e901 -'.,\"\u2019\u201c()@&/:$", "Mr.", "U.S.", "--", "...", "'s", "Brien", "@-@"]
    + [
        *SPECIALS,
        "\u6f22",
        "\u0e2a",
        "\u0301",
        "\U0001f44d\U0001f3fd",
        "\u200d",
        "\u0130",
        "\u00a0",
    ]
)
TEXTS = st.lists(PARTS, max_size=12).map("".join) | st.text(
    st.characters(exclude_categories=("Cs",)), max_size=20
)


def split(rule, text, lowercase=False):
    return [piece.word for piece in SPLITTERS[rule, lowercase].words(text)]


def spoken():
    """Yield approximate sentences of every fourth of the bundled addresses."""
    for address in islice(addresses(), 0, None, 4):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", address):
            yield " ".join(sentence.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world!", "Hello | , | world | !"),
        ("I don't know; it's John's.", "I | don't | know | ; | it's | John's | ."),
        ("five o'clock rock'n'roll", "five | o'clock | rock'n'roll"),
        ("don\u2019t", "don\u2019t"),
        ("the dogs' 'tis", "the | dogs | ' | ' | tis"),
        ("a well-known F-16, two- and three-year", "a | well-known | F-16 | , | two- | and "
         "| three-year"),
        ("yes--no -- \u2014", "yes | -- | no | -- | \u2014"),
        ("3,000.5 at 10:30, -5 .5 1990s 73d", "3,000.5 | at | 10:30 | , | -5 | .5 | 1990s | 73d"),
        ("$5 is 7%", "$ | 5 | is | 7 | %"),
        ("the U.S. and U.S.-led, e.g. J. Doe", "the | U.S. | and | U.S.-led | , | e.g. | J | . "
         "| Doe"),
        ("Mr. Smith, etc.", "Mr | . | Smith | , | etc | ."),
        ("(see https://a.org/b?c=1).", "( | see | https://a.org/b?c=1 | ) | ."),
        ("www.a.org, me@a.org. example.com!", "www.a.org | , | me@a.org | . | example.com | !"),
        ('He said: "No."', 'He | said | : | " | No | . | "'),
        ("\u201cNo\u201d \u00abnon\u00bb", "\u201c | No | \u201d | \u00ab | non | \u00bb"),
        ("wait... what?! so\u2026", "wait | ... | what | ?! | so | \u2026"),
        ("and/or AT&T x_y", "and | / | or | AT&T | x_y"),
        ("\u6f22\u5b57\u304b\u306a\u3002", "\u6f22 | \u5b57 | \u304b | \u306a | \u3002"),
        ("\u0e2a\u0e27\u0e31", "\u0e2a | \u0e27\u0e31"),
        ("\uc548\ub155 \u0434\u0430, \u043d\u0435\u0442", "\uc548\ub155 | \u0434\u0430 | , "
         "| \u043d\u0435\u0442"),
        ("cafe\u0301s \u0645\u06cc\u200c\u062e", "cafe\u0301s | \u0645\u06cc\u200c\u062e"),
        ("ok\U0001f44d\U0001f3fd\U0001f1e9\U0001f1ea!", "ok | \U0001f44d\U0001f3fd "
         "| \U0001f1e9\U0001f1ea | !"),
        ("a <unk> </s>", "a | <unk> | < | / | s | >"),
        ("a\u00a0b\x1fc", "a | b | c"),
    ],
)  # fmt: skip
def test_words_rule(text, expected):
    assert split("words", text) == expected.split(" | ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a well-known F-16", "a well @-@ known F @-@ 16"),
        ("3,000.5, 1.2.3 and -5.5", "3 @,@ 000 @.@ 5 , 1 @.@ 2 @.@ 3 and -5 @.@ 5"),
        ("the 1,000th 2.5D .50 v1.1", "the 1,000th 2.5D .50 v1.1"),
        ("a 3.5-inch disk.", "a 3 @.@ 5 @-@ inch disk ."),
        ("It's what I don't, they've", "It 's what I don 't , they 've"),
        ("O'Brien at 5 o'clock", "O 'Brien at 5 o 'clock"),
        ("Tik'al 'hello' the dogs' '70s", "Tik ' al ' hello ' the dogs ' ' 70s"),
        ("I\u2019m \u201cnot\u201d here", 'I \'m " not " here'),
        ("in the U.S., e.g. J. Doe", "in the U.S. , e.g. J. Doe"),
        ("Mr. Smith. St. Paul vs. No. 5.", "Mr. Smith . St. Paul vs. No. 5 ."),
        ("(an end).", "( an end ) ."),
        ("so... yes--no \u2013 $5/7%", "so ... yes -- no \u2013 $ 5 / 7 %"),
        ("two- and -like U.S.-based", "two- and -like U.S.-based"),
        ("<unk>'s <unk> <formula>", "<unk> 's <unk> <formula>"),
        ("</s> <pad>.", "</s> <pad> ."),
        ("AT&T x_y a?!", "AT & T x _ y a ? !"),
    ],
)
def test_wikitext_rule(text, expected):
    assert split("wikitext", text) == expected.split()


def test_wikitext_rule_keeps_wikitext():
    # Invented, with every kind of word in the published text.
    text = (
        "= = Early life = = The 23 @-@ year @-@ old 's U.S. tour ( 1 @,@ 200 km or 0 @.@ 7 % ) , "
        "which Dr. O 'Brien didn 't like , \" <unk> \" , 1990s \u2013 2000 ; J. S. Bach \u2019 s "
        "No. 2 in D @-@ flat ... He 'd seen the players ' 18- and 19th- century Ltd. & Co. / "
        "\u00a3 5 : 1 \u2014 1UP.com 's -- <formula> [ sic ] etc. \u201c a \u201d"
    )
    assert split("wikitext", text) == text.split()
    lowered = text.replace("No.", "Nos.").replace("Co.", "Corp.").lower()
    assert split("wikitext", lowered, lowercase=True) == lowered.split()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lowercase", [False, True])
@given(text=TEXTS)
@example(text="\u0130. O'Brien's")
def test_spans_cover_everything_but_white_space(rule, lowercase, text):
    before = 0
    for word, start, end in SPLITTERS[rule, lowercase].words(text):
        assert text[before:start].strip() == "" and before <= start < end
        assert word and not re.search(r"\s", word)
        if rule != "wikitext":
            original = text[start:end]
            assert word == (module.lowercase(original) if lowercase else original)
        before = end
    assert text[before:].strip() == ""


@pytest.mark.parametrize("lowercase", [False, True])
@given(text=TEXTS)
def test_wikitext_rule_is_idempotent(lowercase, text):
    words = split("wikitext", text, lowercase)
    assert split("wikitext", " ".join(words), lowercase) == words


@pytest.mark.parametrize("rule", RULES)
@given(text=TEXTS)
def test_words_of_matches_words(rule, text):
    splitter = SPLITTERS[rule, True]
    apart = [word for words in splitter.words_of(text.split()) for word in words]
    assert apart == [piece.word for piece in splitter.words(text)]


@pytest.mark.parametrize("rule", RULES)
@given(
    word=st.text("aZs19", max_size=3) | st.sampled_from(["Mr", "no", "No", "vs", "st"]),
    marks=st.tuples(*[st.sampled_from(["", *map(chr, range(33, 127))])] * 2),
)
def test_fast_path_matches_the_pattern(rule, word, marks):
    token, splitter = marks[0] + word + marks[1], SPLITTERS[rule, False]
    found = splitter._split_simple(token) if token else None
    assert found in (None, tuple(span.word for span in splitter.words(token)))


def test_spans_refer_to_text_before_lowercasing():
    assert "\u0130".lower() != "\u0130" and len("\u0130".lower()) == 2
    spans = SPLITTERS["words", True].words("\u0130, Yes")
    assert spans == [WordSpan("i\u0307", 0, 1), WordSpan(",", 1, 2), WordSpan("yes", 3, 6)]


def test_lowercasing_never_produces_special_tokens():
    assert split("whitespace", "The </S> <UNK> <unk>", lowercase=True) == [
        "the", "</S>", "<UNK>", "<unk>"
    ]  # fmt: skip


@pytest.mark.parametrize("rule", ["words", "wikitext"])
@pytest.mark.parametrize("part", ["\u6f22", "U.S.-", "\u00e9"])
def test_long_tokens_are_split_in_stretches(rule, part):
    text = part * (2_500 // len(part))
    pieces = Splitter(Splitting(rule)).words(text)
    assert "".join(text[start:end] for _, start, end in pieces) == text
    assert max(end - start for _, start, end in pieces) <= 1_000
    cuts = {start for _, start, _ in pieces}
    assert {1_000, 2_000} <= cuts


@pytest.mark.parametrize("rule", ["words", "wikitext"])
def test_join_restores_sentences(rule):
    splitter = SPLITTERS[rule, False]
    marks = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"") if rule == "wikitext" else {}
    number = alike = 0
    for sentence in spoken():
        joined = join(rule, [piece.word for piece in splitter.words(sentence)])
        assert joined.replace(" ", "") == sentence.translate(marks).replace(" ", "")
        number, alike = number + 1, alike + (joined == sentence.translate(marks))
    assert number > 15_000 and alike > 0.98 * number


def join(rule, words):
    return "".join(map(Splitter(Splitting(rule)).joiner().add, words))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("Hello , world !", "Hello, world!"),
        ('He said : " No . " Then " yes " .', 'He said: "No." Then "yes".'),
        ("\u201c a \u201d ( b ) [ c ]", "\u201ca\u201d (b) [c]"),
        ("the dogs ' food , a ' quoted ' word", "the dogs' food, a 'quoted' word"),
        ("$ 5 , 7 % of # 1", "$5, 7% of #1"),
        (
            "so ... what ?! 5 \u2013 6 and / or a -- b - c",
            "so... what?! 5\u20136 and/or a -- b - c",
        ),
        ("\u6f22 \u5b57 \u3002 \u306a no", "\u6f22\u5b57\u3002\u306a no"),
        ("don\u2019t \u2018 x \u2019", "don\u2019t \u2018x\u2019"),
        ("@-@", "@-@"),
        ("", ""),
        ("`` no way", "``no way"),
    ],
)
def test_join_words(words, text):
    assert join("words", words.split()) == text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("a well @-@ known 3 @,@ 000 @.@ 5", "a well-known 3,000.5"),
        ("it 's O 'Brien who didn 't", "it's O'Brien who didn't"),
        ('" <unk> " , he said', '"<unk>", he said'),
        ("at 10 : 30 : go", "at 10:30: go"),
    ],
)
def test_join_wikitext(words, text):
    assert join("wikitext", words.split()) == text


@pytest.mark.parametrize("rule", ["whitespace", "words", "wikitext"])
@given(
    words=st.lists(st.text("ab1.,'\"-/()\u2019\u2013\u6f22", min_size=1, max_size=3), max_size=12)
)
def test_joiner_only_appends_words_and_spaces(rule, words):
    joiner, text = Joiner(rule), ""
    for word in words:
        text += joiner.add(word)
        assert text.endswith(word)
    assert text.replace(" ", "") == "".join(words)
    assert text == text.strip() and "  " not in text
