"""Several processes score one text: each a share of it, one result, equal to that of one."""

import json
import os
import sys

import numpy as np
import pytest
import torch
from started_together import run_together
from training_runs import in_processes, run

from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.evaluation.scoring import ALONE
from zipflm.training.distributed import started

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

CUTS = {
    "blocks": ScoringOptions(block=16, context=4, break_mode="none", batch_tokens=32),
    "lines": ScoringOptions(block=16, break_mode="complete", batch_tokens=48),
    # Fewer batches than processes: some have nothing to do.
    "one batch": ScoringOptions(break_mode="sentence", batch_tokens=100_000),
}


@pytest.fixture(scope="module")
def trained(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    run(word_data, out, "training.max_updates=2")
    return out


def score_all(trained, data, place):
    """What this process gets for every cut, in a file of its own."""
    torch.set_num_threads(1)
    with started("cpu") as process:
        for name, options in CUTS.items():
            found = evaluate(trained, data=data, split="valid", options=options, share=process)
            protocol = found.scores.protocol
            np.savez(
                place / f"{name}-{process.rank}.npz",
                nll=found.scores.nll,
                facts=[protocol.tokens, protocol.words, protocol.positions, protocol.eos],
            )


@pytest.mark.parametrize("count", [2, 3])
def test_every_nll_is_that_of_one_process_in_all_of_them(trained, word_data, tmp_path, count):
    """Bit for bit: the batches are the same, whoever scores them."""
    assert in_processes(count, score_all, trained, word_data.path, tmp_path) == [0] * count
    torch.set_num_threads(1)
    for name, options in CUTS.items():
        alone = evaluate(trained, data=word_data.path, split="valid", options=options, share=ALONE)
        protocol = alone.scores.protocol
        for rank in range(count):
            with np.load(tmp_path / f"{name}-{rank}.npz") as found:
                assert np.array_equal(found["nll"], alone.scores.nll), (name, rank)
                assert found["facts"].tolist() == [
                    protocol.tokens,
                    protocol.words,
                    protocol.positions,
                    protocol.eos,
                ]


def command(*arguments):
    """`zipflm` with what this process is given, where that differs: {RANK} is its number."""
    import zipflm.cli
    import zipflm.studies.report

    zipflm.studies.report.save_figures = lambda *_: []  # which take longer than all the rest
    rank = os.environ.get("RANK", "0")
    sys.argv = ["zipflm", *(each.replace("{RANK}", rank) for each in arguments)]
    zipflm.cli.main()


def test_the_command_prints_one_result(trained, word_data, tmp_path):
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


def test_a_text_is_scored_together_too(trained, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("ba be bila boro bu\n" * 40)
    options = ["--text", str(text), "--device", "cpu", "--json"]
    ended = run_together(tmp_path / "two", 2, command, "evaluate", str(trained), *options)
    assert [each.status for each in ended] == [0, 0], ended
    alone = evaluate(trained, text=text, options=ScoringOptions(device="cpu"))
    assert json.loads(ended[0].stdout)["nll_sum"] == alone.report()["nll_sum"]


def refused(place, *arguments):
    ended = run_together(place, 2, command, *map(str, arguments), "--device", "cpu")
    assert [each.status for each in ended] == [2, 2], ended
    said = "".join(each.stderr for each in ended)
    assert said.count("\n") == 1
    return said


def test_what_one_process_cannot_see_all_refuse(trained, word_data, other_data, tmp_path):
    """Said once, by the first."""
    for rank, path in enumerate((word_data.path, tmp_path / "nowhere")):
        (tmp_path / f"data-{rank}").symlink_to(path)
    said = refused(tmp_path / "a", "evaluate", trained, "--data", tmp_path / "data-{RANK}")
    assert "zipflm: process 1: " in said and "data-1" in said
    said = refused(tmp_path / "b", "evaluate", trained, "--text", "-")
    assert "--text -: several processes cannot read it" in said


def test_other_weights_in_one_process_are_refused(trained, word_data, tmp_path):
    other = tmp_path / "other"
    run(word_data, other, "training.max_updates=1", "training.seed=2")
    for rank, path in enumerate((trained, other)):
        (tmp_path / f"run-{rank}").symlink_to(path)
    options = ["--data", word_data.path, "--split", "valid"]
    said = refused(tmp_path / "said", "evaluate", tmp_path / "run-{RANK}", *options)
    assert "is not the same in all processes" in said


def test_a_report_of_two_processes_is_that_of_one(trained, word_data, tmp_path):
    """`report` scores without keeping; the first process alone writes and prints."""
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


def test_data_is_opened_as_it_is():
    """A share of one process alone changes nothing."""
    assert ALONE.done_by_all(lambda: 3) == 3 and ALONE.all_values("a") == ["a"]
    assert torch.equal(ALONE.add_up(torch.ones(2)), torch.ones(2))
    with pytest.raises(ValueError, match="nowhere"):
        ALONE.done_by_all(lambda: DataFolder.open("nowhere"))
