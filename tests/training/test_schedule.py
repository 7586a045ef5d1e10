import json
from pathlib import Path

import pytest

from zipflm.config import CosineCycles, WarmupDecay
from zipflm.presets import preset
from zipflm.training.schedule import learning_rate

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "cosine_lr.json").read_text())


def schedule_of(golden):
    return CosineCycles(
        warmup_updates=golden["warmup_updates"],
        warmup_from=golden["warmup_init_lr"],
        first_cycle=golden["lr_period_updates"],
        max_lr=golden["lr"],
        min_lr=golden["min_lr"],
        shrink=golden["lr_shrink"],
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_cosine_cycles_equal_the_authors(name):
    golden = GOLDEN[name]
    schedule = schedule_of(golden)
    for update, expected in zip(golden["num_updates"], golden["lr_values"], strict=True):
        ours = learning_rate(schedule, update, golden["max_update"])
        # Late in a cycle two numbers near 1 cancel, and only rounding errors remain.
        assert ours == pytest.approx(expected, rel=1e-12, abs=2e-16), update


def test_sum_over_the_whole_run_equals_the_authors():
    golden = GOLDEN["wikitext103"]
    schedule = schedule_of(golden)
    total = sum(learning_rate(schedule, update, 286_000) for update in range(286_000))
    name = "sum_of_lr_over_updates_0_to_max_update_minus_1"
    assert total == pytest.approx(golden[name], rel=1e-9)


@pytest.mark.parametrize(
    ("dataset", "golden"), [("wikitext-103", "wikitext103"), ("billion-word", "billion_word")]
)
def test_presets_have_the_schedules_of_the_paper(dataset, golden):
    training = preset(dataset).training
    assert training.schedule == schedule_of(GOLDEN[golden])
    assert training.max_updates == GOLDEN[golden]["max_update"]


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_warmup_decay_rises_stays_and_falls(shape):
    schedule = WarmupDecay(warmup=0.1, decay=0.5, shape=shape, final=0.1)
    rates = [learning_rate(schedule, update, 100) for update in range(101)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert set(rates[10:51]) == {1.0}
    assert all(low < high for high, low in zip(rates[50:], rates[51:], strict=False))
    assert rates[75] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)


def test_rejects_a_minimum_above_the_maximum():
    with pytest.raises(ValueError, match=r"min_lr=1e-05: must be at most max_lr=1e-06"):
        CosineCycles(max_lr=1e-6)
