"""The benchmark of a training step runs at toy size and its shares add up."""

import json

import pytest
from benchmark_scripts import load


def test_shares_add_up_and_every_number_is_there(capsys):
    small = ["decoder.num_layers=1", "batches.tokens=256", "training.tokens_per_update=512"]
    options = ["--preset", "tiny/ADP-T", "--device", "cpu", "--steps", "2"]
    load("training_step").main([*options, *small])
    result = json.loads(capsys.readouterr().out)
    assert sum(result["shares"].values()) == pytest.approx(1)
    assert list(result["shares"]) == ["data", "forward", "backward", "update"]
    assert result["tokens_per_second"] > 0 and result["peak_memory_bytes"] > 0
    assert 0 <= result["data_share"] < 1
    assert (result["preset"], result["compiled"]) == ("tiny/ADP-T", None)
