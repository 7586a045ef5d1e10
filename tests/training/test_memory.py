"""Out of memory: the error names a setting to change."""

from dataclasses import replace

import pytest
import torch
from training_runs import config_of

from zipflm.training import advice
from zipflm.training.distributed import Process

CPU = Process(0, 1, torch.device("cpu"))


def test_recomputing_is_no_remedy_where_it_is_done(word_data):
    assert "recompute" not in advice.explanation(config_of(word_data, "training.recompute=layer"))


def test_a_model_without_room_is_explained_and_other_errors_are_left_alone(word_data):
    config = replace(config_of(word_data), name="mine")
    sharded = replace(config, training=replace(config.training, parallel="fsdp"))
    three, full = Process(0, 3, CPU.device), "[enforce fail] DefaultCPUAllocator: no memory"
    for asked, process, message in (
        (config, CPU, "2,864 parameters on 1 device.*training.parallel=fsdp"),
        (sharded, three, "2,864 parameters on 3 device.*use more of them"),
    ):
        with (
            pytest.raises(ValueError, match=f"mine: no room for its {message}"),
            advice.model_explained(asked, process),
        ):
            raise RuntimeError(full)
    with pytest.raises(RuntimeError, match="shapes differ"), advice.model_explained(config, CPU):
        raise RuntimeError("shapes differ")
