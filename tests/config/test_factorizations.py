from zipflm.config import AdaptiveInput, AdaptiveOutput, FixedInput, FullOutput
from zipflm.config.model import BY_LABEL, Factorization, label_of


def test_the_papers_eight_in_its_order():
    assert tuple(BY_LABEL) == ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T")
    assert [label_of(kind) for kind in BY_LABEL.values()] == list(BY_LABEL)


def test_what_the_paper_does_not_have_has_no_label():
    for kind in (
        Factorization(AdaptiveInput, FullOutput),
        Factorization(FixedInput, AdaptiveOutput, is_tied=True),
        Factorization(AdaptiveInput, AdaptiveOutput, is_tied=True, unit="bpe"),
    ):
        assert label_of(kind) is None
