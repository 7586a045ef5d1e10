"""The valid set on the way: a fixed part often, and all of it where a checkpoint depends on it."""

import json
import os

import numpy as np
import pytest
import torch
from training_runs import assert_same, config_of, in_processes, run, validations, weights

from zipflm.data.folder import DataFolder
from zipflm.data.tokens import TokenArray
from zipflm.runs.folder import RunFolder
from zipflm.training import compilation, trainer
from zipflm.training.validation import part_of

PART = ["training.validate_share=0.5", "training.validate_every=2", "training.max_updates=8"]


def numbered(lengths):
    """Lines of so many tokens, each token the number of its line."""
    return TokenArray.of([[number] * length for number, length in enumerate(lengths)])


def test_a_part_has_lines_from_all_over_the_text():
    tokens = numbered([3] * 1600)
    part = part_of(tokens, 0.1)
    lines = np.unique(part.ids)
    assert len(lines) == 160 and len(part.ids) == 480
    assert [int(line) for line in lines if line % 100 == 0] == list(range(0, 1600, 100))


def test_a_part_is_the_same_lines_whatever_they_are_made_of():
    words, pieces = numbered([3] * 500), numbered(list(range(1, 501)))
    assert set(part_of(words, 0.2).ids) == set(part_of(pieces, 0.2).ids)


@pytest.mark.parametrize(("lines", "share"), [(1600, 1.0), (20, 0.01), (3, 0.5), (40, 0.99)])
def test_all_of_the_text_is_taken_where_no_part_can_be_chosen(lines, share):
    tokens = numbered([2] * lines)
    assert part_of(tokens, share) is tokens


def test_the_last_validation_and_those_of_checkpoints_cover_everything(
    word_data, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("zipflm.training.validation._RUNS_OF_LINES", 2)
    run(word_data, tmp_path, *PART, "training.checkpoint_every=4", keep=0)
    found = validations(tmp_path)
    assert [(line.update, line.share) for line in found] == [
        (2, 0.5), (4, 0.5), (4, 1), (6, 0.5), (8, 0.5), (8, 1)
    ]  # fmt: skip
    words = word_data.split("valid").words
    assert all((line.words == words) == (line.share == 1) for line in found)
    for checkpoint in RunFolder(tmp_path).checkpoints():
        assert checkpoint.state().valid.words == words
    said = capsys.readouterr().out
    assert "50% of the set" in said and f"({words:,} words, complete" in said


def test_what_part_is_scored_on_the_way_changes_no_weight(word_data, tmp_path, monkeypatch):
    monkeypatch.setattr("zipflm.training.validation._RUNS_OF_LINES", 2)
    run(word_data, tmp_path / "part", *PART)
    run(word_data, tmp_path / "whole", *PART[1:])
    assert_same(weights(tmp_path / "part"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_a_share_that_is_none_is_refused(word_data, share):
    with pytest.raises(ValueError, match="validate_share=.*is a share of the valid set"):
        config_of(word_data, f"training.validate_share={share}")


def train_sharded(path, out):
    """A sharded, compiled run that validates after every update; how many graphs were compiled by
    the beginning and by the end of each pass over the valid set, and by the end of the run."""
    torch.set_num_threads(1)
    seen, graphs, validate = [], [], trainer.validate

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    def watched(run, *, whole):
        seen.append(len(graphs))
        result = validate(run, whole=whole)
        seen.append(len(graphs))
        return result

    compilation.BACKEND, trainer.validate = backend, watched
    settings = ["training.parallel=fsdp", "training.compile=true", "training.validate_every=1"]
    # Whole lines: batches of all shapes.
    shapes = ["batches.eval_break_mode=complete", "batches.eval_block=24", "decoder.num_layers=2"]
    run(DataFolder.open(path), out, *settings, *shapes, "training.max_updates=3")
    total = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    out.with_name(f"seen-{os.environ['RANK']}").write_text(json.dumps([*seen, len(graphs), total]))


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_sharded_model_is_not_compiled_for_the_shapes_of_the_valid_set(word_data, tmp_path):
    """Nor once more for training after that."""
    assert in_processes(2, train_sharded, word_data.path, tmp_path / "run") == [0, 0]
    for rank in range(2):
        seen = json.loads((tmp_path / f"seen-{rank}").read_text())
        assert len(seen) == 8 and seen[0] > 0
        assert set(seen) == {seen[0]}
