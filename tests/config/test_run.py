import pytest

from zipflm import preset
from zipflm.config import BatchConfig, TrainingConfig
from zipflm.settings import override

ADP = preset("tiny", "ADP")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainingConfig(dtype="fp16"), "dtype='fp16': choose from float32"),
        (
            lambda: TrainingConfig(recompute="all"),
            "recompute='all': choose from none, attention",
        ),
        (lambda: BatchConfig(break_mode="eos"), "break_mode='eos': choose from none, complete"),
        (lambda: BatchConfig(block=512, tokens=100), "tokens=100: must be at least block=512"),
        (
            lambda: override(ADP, ["input.sparse=true", "training.parallel=fsdp"]),
            "input.sparse=True: needs training.parallel=ddp",
        ),
        (
            lambda: override(ADP, ["input.sparse=true", "training.tables=sharded"]),
            "input.sparse=True: .* training.tables=replicated",
        ),
        (lambda: BatchConfig(eval_block=512, eval_context=512), "eval_context=512"),
    ],
)
def test_rejects_impossible_runs(make, message):
    with pytest.raises(ValueError, match=message):
        make()
