"""What cannot be trained is refused by name before anything is built."""

from dataclasses import replace

import pytest
from training_runs import config_of, run

from zipflm.presets import FACTORIZATIONS, preset
from zipflm.training.limits import require_trainable

TOO_MUCH = {
    "training.schedule.max_lr=1e308": r"training.schedule.max_lr=1e\+308: .*at most 1e\+18",
    "training.schedule.warmup_from=1e308": "training.schedule.warmup_from",
    "training.optimizer.weight_decay=1e308": "training.optimizer.weight_decay",
    "training.clip_norm=1e200": "training.clip_norm",
    "decoder.num_layers=1000000000": "decoder.num_layers=1000000000: give at most 10,000",
    "decoder.ffn_dim=2147483647 decoder.num_layers=100": "7,0.* in decoder.layers, are more",
    "training.stages=1e-300:16": "training.stages='1e-300:16': .*before the first update",
    "training.stages=" + ",".join(f"{n / 200}:16" for n in range(1, 120)): "give at most 100",
}


@pytest.mark.parametrize("overrides", TOO_MUCH, ids=lambda text: text[:40])
def test_what_cannot_be_trained_is_refused_by_name(word_data, tmp_path, overrides):
    with pytest.raises(ValueError, match=TOO_MUCH[overrides]) as error:
        run(word_data, tmp_path / "run", *overrides.split(" "))
    assert len(str(error.value)) < 300 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("rate", ["lr", "table_lr", "matrix_lr"])
def test_rates_of_other_optimizers_are_looked_at_too(word_data, tmp_path, rate):
    config = config_of(word_data, "training.optimizer=Muon", f"training.optimizer.{rate}=1e300")
    with pytest.raises(ValueError, match=f"training.optimizer.{rate}=1e"):
        require_trainable(config)


def test_highway_layers_are_counted():
    config = preset("tiny", "CNN")
    config = replace(config, input=replace(config.input, highway_layers=10**6))
    with pytest.raises(ValueError, match="input.highway_layers=1000000"):
        require_trainable(config)


@pytest.mark.parametrize("name", FACTORIZATIONS)
@pytest.mark.parametrize("dataset", ["wikitext-103", "billion-word", "tiny"])
def test_every_preset_can_be_trained(dataset, name):
    require_trainable(preset(dataset, name))


def test_the_largest_that_is_allowed_ends_in_no_traceback(word_data, tmp_path):
    """It diverges, which is another matter."""
    rates = ["training.schedule.max_lr=1e18", "training.schedule.warmup_from=1e18"]
    more = ["training.optimizer.weight_decay=1e18", "training.clip_norm=1e18"]
    with pytest.raises(ValueError, match="training.max_bad_updates=2"):
        run(word_data, tmp_path / "run", *rates, *more, "training.max_bad_updates=2")


def test_a_short_run_may_skip_a_stage(word_data, tmp_path):
    assert run(word_data, tmp_path / "run", "training.stages=0.3:8", "training.max_updates=1")
