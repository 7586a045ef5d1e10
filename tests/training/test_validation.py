"""The valid set on the way: a fixed part often, and all of it where a checkpoint depends on it."""

import json
import os
import time

import numpy as np
import pytest
import torch
from training_runs import in_processes, reports, run, validations

from zipflm.data.folder import DataFolder
from zipflm.data.token_file import TokenArray
from zipflm.runs.folder import RunFolder
from zipflm.training import compilation, trainer, validation
from zipflm.training.validation import part_of

PART = ["training.validate_share=0.5", "training.validate_every=2", "training.max_updates=8"]


def numbered(lengths):
    """Lines of so many tokens, each token the number of its line."""
    return TokenArray.of([[number] * length for number, length in enumerate(lengths)])


def part(tokens, share):
    return part_of(tokens, share, np.ones(int(tokens.ids.max()) + 1, dtype=bool))


def test_a_part_has_words_from_all_over_the_text():
    tokens = numbered([3] * 1600)
    chosen = part(tokens, 0.1)
    lines = np.unique(chosen.ids)
    assert len(chosen.ids) == 480 and len(lines) == 160
    assert [int(line) for line in lines if line % 100 == 0] == list(range(0, 1600, 100))
    assert np.array_equal(np.diff(chosen.offsets), [3] * 160)


@pytest.mark.parametrize("lengths", [[50_000, 49_999, 1], [7] * 20_000])
def test_a_part_is_a_share_of_the_words_whatever_the_lines(lengths):
    tokens = numbered(lengths)
    chosen = part(tokens, 0.1)
    assert len(chosen.ids) == pytest.approx(0.1 * sum(lengths), rel=0.01)
    assert chosen.offsets[-1] == len(chosen.ids) and (np.diff(chosen.offsets) > 0).all()


def test_a_part_is_the_same_words_whatever_they_are_made_of():
    """Even ids end words, odd ones are pieces before them."""
    words = TokenArray.of([range(0, 4_000, 2), range(4_000, 8_000, 2)])
    pieces = TokenArray.of([range(0, 4_000), range(4_000, 8_000)])
    ends_word = np.arange(8_000) % 2 == 0
    ours, theirs = (part_of(tokens, 0.1, ends_word).ids for tokens in (words, pieces))
    assert np.array_equal(ours, theirs[ends_word[theirs]])


@pytest.mark.parametrize(("lines", "share"), [(1600, 1.0), (3, 0.5), (40, 0.99)])
def test_all_of_the_text_is_taken_where_no_part_can_be_chosen(lines, share):
    tokens = numbered([2] * lines)
    assert part(tokens, share) is tokens


def test_a_pass_on_the_way_is_short_beside_the_training_between_two(
    word_data, tmp_path, monkeypatch
):
    monkeypatch.setattr("zipflm.training.validation._FEWEST_WORDS", 1)
    run(word_data, tmp_path, "training.validate_every=2", "training.max_updates=6")
    found = validations(tmp_path)
    assert [line.update for line in found] == [2, 4, 6, 6]
    assert all(0 < line.words <= 2 * 128 / 4 + 16 for line in found[:3])
    assert found[-1].words == word_data.split("valid").words


def test_the_time_left_counts_the_passes_to_come(word_data, tmp_path, monkeypatch):
    scored = validation._scored
    monkeypatch.setattr(validation, "_scored", lambda *args: time.sleep(0.5) or scored(*args))
    every = ["training.validate_every=2", "training.report_every=2", "training.max_updates=6"]
    run(word_data, tmp_path, *every)
    left = {report.update: report.seconds_left for report in reports(tmp_path)}
    # Two passes are left of an update before its own, or the last one alone.
    assert left[4] > 1.0 and 0.5 < left[6] < left[4]


def test_the_last_validation_and_those_of_checkpoints_cover_everything(word_data, tmp_path, capsys):
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


def train_sharded(path, out):
    """A sharded, compiled run that validates after every update; how many graphs were compiled by
    the beginning and by the end of each pass over the valid set, and by the end of the run."""
    torch.set_num_threads(1)
    seen, graphs, validate = [], [], trainer.validate

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    def watched(run, **options):
        seen.append(len(graphs))
        result = validate(run, **options)
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
