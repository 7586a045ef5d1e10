import pytest
import torch

from zipflm.kernels import checked_ids


def test_passes_good_ids_through_as_int64():
    ids = torch.tensor([[0, 3], [9, 1]], dtype=torch.int16)
    checked = checked_ids("words", ids, 10)
    assert checked.dtype == torch.int64
    assert torch.equal(checked, ids.long())


def test_ids_that_are_not_active_are_not_looked_at():
    ids, active = torch.tensor([-100, 4, 99]), torch.tensor([False, True, False])
    assert checked_ids("targets", ids, 10, active).tolist() == [0, 4, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_bad_id_is_named(compiled):
    check = torch.compile(checked_ids, backend="eager", fullgraph=True) if compiled else checked_ids
    with pytest.raises(ValueError, match="words=12: outside the vocabulary of 10 words; .*0 to 9"):
        check("words", torch.tensor([1, 12, 13]), 10)
