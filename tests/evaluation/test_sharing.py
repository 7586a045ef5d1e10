"""Several processes that share the scoring of one text."""

import json
import os
import sys

import numpy as np
import pytest
import torch
from started_together import run_together
from training_runs import in_processes, run

from zipflm.distributed.processes import SINGLE_PROCESS, started
from zipflm.evaluation.evaluate import ScoringOptions, evaluate

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

CUTS = {
    "blocks": ScoringOptions(block=16, context=4, break_mode="none", batch_tokens=32, device="cpu"),
    "lines": ScoringOptions(block=16, break_mode="complete", batch_tokens=48, device="cpu"),
    # Fewer batches than processes.
    "one batch": ScoringOptions(break_mode="sentence", batch_tokens=100_000, device="cpu"),
}


@pytest.fixture(scope="module")
def trained(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    run(word_data, out, "training.max_updates=2")
    return out


def score_all(trained, data, place):
    """Write the results of this process to files."""
    torch.set_num_threads(1)
    with started("cpu") as process:
        for name, options in CUTS.items():
            found = evaluate(trained, data=data, split="valid", options=options, process=process)
            protocol = found.scores.protocol
            np.savez(
                place / f"{name}-{process.rank}.npz",
                nll=found.scores.nll,
                metadata=[protocol.tokens, protocol.words, protocol.positions, protocol.eos],
            )


@pytest.mark.parametrize("count", [2, 3])
def test_every_process_gets_the_nll_of_a_single_one(trained, word_data, tmp_path, count):
    """Bit for bit, because the batches are the same."""
    assert in_processes(count, score_all, trained, word_data.path, tmp_path) == [0] * count
    torch.set_num_threads(1)
    for name, options in CUTS.items():
        alone = evaluate(
            trained, data=word_data.path, split="valid", options=options, process=SINGLE_PROCESS
        )
        protocol = alone.scores.protocol
        for rank in range(count):
            with np.load(tmp_path / f"{name}-{rank}.npz") as found:
                assert np.array_equal(found["nll"], alone.scores.nll), (name, rank)
                assert found["metadata"].tolist() == [
                    protocol.tokens,
                    protocol.words,
                    protocol.positions,
                    protocol.eos,
                ]


def command(*arguments):
    """Run `zipflm`, with {RANK} in the arguments replaced by the rank."""
    import zipflm.cli
    import zipflm.studies.report

    zipflm.studies.report.save_figures = lambda *_: []  # slow
    rank = os.environ.get("RANK", "0")
    sys.argv = ["zipflm", *(each.replace("{RANK}", rank) for each in arguments)]
    zipflm.cli.main()


def test_command_prints_one_result(trained, word_data, tmp_path):
    options = ["--data", str(word_data.path), "--split", "valid", "--device", "cpu", "--json"]
    ended = run_together(tmp_path / "two", 2, command, "evaluate", str(trained), *options)
    assert [each.status for each in ended] == [0, 0], ended
    assert ended[1].stdout == ""
    found = json.loads(ended[0].stdout)
    alone = evaluate(
        trained, data=word_data.path, split="valid", options=ScoringOptions(device="cpu")
    )
    assert found["device"] == "2 x cpu"
    assert found["nll_sum"] == alone.report()["nll_sum"]


def test_scores_a_text_together(trained, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("ba be bila boro bu\n" * 40)
    options = ["--text", str(text), "--device", "cpu", "--json"]
    ended = run_together(tmp_path / "two", 2, command, "evaluate", str(trained), *options)
    assert [each.status for each in ended] == [0, 0], ended
    alone = evaluate(trained, text=text, options=ScoringOptions(device="cpu"))
    assert json.loads(ended[0].stdout)["nll_sum"] == alone.report()["nll_sum"]


def error_of(place, *arguments):
    ended = run_together(place, 2, command, *map(str, arguments), "--device", "cpu")
    assert [each.status for each in ended] == [2, 2], ended
    printed = "".join(each.stderr for each in ended)
    assert printed.count("\n") == 1
    return printed


def test_an_error_in_one_process_is_printed_once(trained, word_data, tmp_path):
    for rank, path in enumerate((word_data.path, tmp_path / "nowhere")):
        (tmp_path / f"data-{rank}").symlink_to(path)
    error = error_of(tmp_path / "a", "evaluate", trained, "--data", tmp_path / "data-{RANK}")
    assert "zipflm: process 1: " in error and "data-1" in error
    error = error_of(tmp_path / "b", "evaluate", trained, "--text", "-")
    assert "text=-: several processes cannot share standard input" in error


def test_rejects_different_weights(trained, word_data, tmp_path):
    other = tmp_path / "other"
    run(word_data, other, "training.max_updates=1", "training.seed=2")
    for rank, path in enumerate((trained, other)):
        (tmp_path / f"run-{rank}").symlink_to(path)
    options = ["--data", word_data.path, "--split", "valid"]
    error = error_of(tmp_path / "two", "evaluate", tmp_path / "run-{RANK}", *options)
    assert "hash of the weights is" in error and "use the same folders" in error


def test_report_of_two_processes_equals_that_of_one(trained, word_data, tmp_path):
    options = ["--data", str(word_data.path), "--context-sizes", "0,4", "--device", "cpu"]
    together, alone = tmp_path / "together", tmp_path / "alone"
    ended = run_together(
        tmp_path / "two", 2, command, "report", str(trained), *options, "--out", str(together)
    )
    assert [each.status for each in ended] == [0, 0], ended
    assert "report: " in ended[0].stdout and ended[1].stdout == ""
    ended = run_together(
        tmp_path / "one", 1, command, "report", str(trained), *options, "--out", str(alone)
    )
    assert [each.status for each in ended] == [0], ended
    assert (together / "table.json").read_text() == (alone / "table.json").read_text()
    assert not (trained / "scores").exists()
