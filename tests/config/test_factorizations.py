import pytest

from zipflm.config import AdaptiveInput, AdaptiveOutput, CharacterInput, FixedInput, FullOutput
from zipflm.config.factorizations import BY_LABEL, Factorization, label_of


def test_the_papers_eight_in_its_order():
    assert tuple(BY_LABEL) == ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T")


def test_no_two_labels_mean_the_same():
    assert len(set(BY_LABEL.values())) == 8
    assert [label_of(kind) for kind in BY_LABEL.values()] == list(BY_LABEL)


@pytest.mark.parametrize(
    "kind",
    [
        Factorization(AdaptiveInput, FullOutput),
        Factorization(CharacterInput, FullOutput),
        Factorization(FixedInput, AdaptiveOutput, is_tied=True),
        Factorization(AdaptiveInput, AdaptiveOutput, is_tied=True, unit="bpe"),
        Factorization(CharacterInput, AdaptiveOutput, unit="bpe"),
    ],
)
def test_what_the_paper_does_not_have_has_no_label(kind):
    assert label_of(kind) is None
