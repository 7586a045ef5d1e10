"""Imported checkpoints get the log-probabilities of the authors' code."""

import numpy as np
import pytest
from fairseq_checkpoints import CHECKPOINTS, GOLDEN, import_run

from zipflm.evaluation.evaluate import ScoringOptions, evaluate

BREAKS = {"none": "none", "complete": "complete", "eos": "sentence"}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda path: path.stem)
def test_log_probabilities_equal_the_authors(checkpoint, data, tmp_path):
    run = import_run(checkpoint, tmp_path / "run")
    model = checkpoint.name.split(".")[0]
    with np.load(GOLDEN / "eval_logprobs.npz") as golden:
        names = [name for name in golden if name.startswith(f"{model}.")]
        assert len(names) == 12
        for name in names:
            _, split, mode, context = name.split(".")
            options = ScoringOptions(
                device="cpu",
                block=64,
                context=int(context.removeprefix("ctx")),
                break_mode=BREAKS[mode],
            )
            scores = evaluate(run, data=data, split=split, options=options).scores
            np.testing.assert_array_equal(scores.targets, golden[split], err_msg=name)
            np.testing.assert_allclose(scores.nll, -golden[name], rtol=0, atol=1e-5, err_msg=name)
