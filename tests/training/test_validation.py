import json
import os

import numpy as np
import pytest
import torch
from training_runs import in_processes, run, validations

from zipflm.data.folder import DataFolder
from zipflm.data.token_file import TokenArray
from zipflm.runs.folder import RunFolder
from zipflm.training import compilation, trainer
from zipflm.training.validation import sample_of

PART = ["training.validate_share=0.5", "training.validate_every=2", "training.max_updates=8"]


def numbered(lengths):
    """Lines of these lengths; every token is the number of its line."""
    return TokenArray.of([[number] * length for number, length in enumerate(lengths)])


def part(tokens, share):
    return sample_of(tokens, share, np.ones(int(tokens.ids.max()) + 1, dtype=bool))


def test_a_part_is_spread_over_the_text():
    tokens = numbered([3] * 1600)
    chosen = part(tokens, 0.1)
    lines = np.unique(chosen.ids)
    assert len(chosen.ids) == 480 and len(lines) == 160
    assert [int(line) for line in lines if line % 100 == 0] == list(range(0, 1600, 100))
    assert np.array_equal(np.diff(chosen.offsets), [3] * 160)


@pytest.mark.parametrize("lengths", [[50_000, 49_999, 1], [7] * 20_000])
def test_a_part_has_the_requested_share_of_words(lengths):
    tokens = numbered(lengths)
    chosen = part(tokens, 0.1)
    assert len(chosen.ids) == pytest.approx(0.1 * sum(lengths), rel=0.01)
    assert chosen.offsets[-1] == len(chosen.ids) and (np.diff(chosen.offsets) > 0).all()


def test_a_part_has_the_same_words_for_sub_words():
    """Even ids end words, odd ones are pieces before them."""
    words = TokenArray.of([range(0, 4_000, 2), range(4_000, 8_000, 2)])
    pieces = TokenArray.of([range(0, 4_000), range(4_000, 8_000)])
    ends_word = np.arange(8_000) % 2 == 0
    ours, theirs = (sample_of(tokens, 0.1, ends_word).ids for tokens in (words, pieces))
    assert np.array_equal(ours, theirs[ends_word[theirs]])


@pytest.mark.parametrize(("lines", "share"), [(1600, 1.0), (3, 0.5), (40, 0.99)])
def test_uses_the_whole_text_if_it_is_short(lines, share):
    tokens = numbered([2] * lines)
    assert part(tokens, share) is tokens


def test_a_small_set_is_scored_completely(word_data, tmp_path):
    """A tenth of it would be a few words without context."""
    words = word_data.split("valid").words
    assert words < 2_000
    run(word_data, tmp_path, "training.validate_share=0.1", "training.max_updates=2")
    assert [(line.words, line.share) for line in validations(tmp_path)] == [(words, 1)]


def test_validation_is_short_compared_with_training(word_data, tmp_path, monkeypatch):
    monkeypatch.setattr("zipflm.training.validation._MIN_WORDS", 1)
    run(word_data, tmp_path, "training.validate_every=2", "training.max_updates=6")
    found = validations(tmp_path)
    assert [line.update for line in found] == [2, 4, 6, 6]
    assert all(0 < line.words <= 2 * 128 / 4 + 16 for line in found[:3])
    assert found[-1].words == word_data.split("valid").words


def test_scores_the_whole_set_at_checkpoints_and_at_the_end(
    word_data, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("zipflm.training.validation._MIN_WORDS", 1)
    run(word_data, tmp_path, *PART, "training.checkpoint_every=4", keep=0)
    found = validations(tmp_path)
    assert [(line.update, line.share) for line in found] == [
        (2, 0.5), (4, 0.5), (4, 1), (6, 0.5), (8, 0.5), (8, 1)
    ]  # fmt: skip
    words = word_data.split("valid").words
    assert all((line.words == words) == (line.share == 1) for line in found)
    for checkpoint in RunFolder(tmp_path).checkpoints():
        assert checkpoint.state().valid.words == words
    output = capsys.readouterr().out
    assert "50% of the set" in output and f"({words:,} words, block" in output


def train_sharded(path, out):
    """Train a sharded, compiled run; record the number of compiled graphs before and after each
    validation and at the end."""
    torch.set_num_threads(1)
    seen, graphs, validate = [], [], trainer.validate

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    def record(run, **options):
        seen.append(len(graphs))
        result = validate(run, **options)
        seen.append(len(graphs))
        return result

    compilation.BACKEND, trainer.validate = backend, record
    settings = ["training.parallel=fsdp", "training.compile=true", "training.validate_every=1"]
    # Whole lines give batches of various shapes.
    shapes = ["batches.eval_break_mode=complete", "batches.eval_block=24", "decoder.num_layers=2"]
    run(DataFolder.open(path), out, *settings, *shapes, "training.max_updates=3")
    total = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    out.with_name(f"seen-{os.environ['RANK']}").write_text(json.dumps([*seen, len(graphs), total]))


@pytest.mark.slow
@pytest.mark.multi_process
def test_validation_does_not_compile_a_sharded_model(word_data, tmp_path):
    assert in_processes(2, train_sharded, word_data.path, tmp_path / "run") == [0, 0]
    for rank in range(2):
        seen = json.loads((tmp_path / f"seen-{rank}").read_text())
        assert len(seen) == 8 and seen[0] > 0
        assert set(seen) == {seen[0]}
