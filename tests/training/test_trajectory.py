import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    CosineCycles,
    ModelConfig,
    Tie,
    TransformerDecoder,
)
from zipflm.data.batches import Batch
from zipflm.distributed.processes import Process
from zipflm.interop.fairseq import model_weights
from zipflm.model.language_model import LanguageModel
from zipflm.training import optimizers, step
from zipflm.training.optimizers import NesterovMomentum
from zipflm.training.schedule import learning_rate

GOLDEN = Path(__file__).parents[1] / "golden"
CUTOFFS = (60, 200)
SCHEDULE = CosineCycles(warmup_updates=4, first_cycle=4)


class PublishedLoss(torch.nn.Module):
    """The nll as summed by the authors' training code, including a bug: for word 1 of a tail band
    only the class counts, because the padding id 1 is ignored within the band as well."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words, targets, scored):
        nll = self.model.nll(words, targets, scored)
        hidden = self.model(words)
        for cutoff, end in zip(CUTOFFS, (*CUTOFFS[1:], 496), strict=True):
            quirk = targets == cutoff + 1
            # log p within the band = log p(word) - log p(any word of the band)
            log_probs = self.model.output.log_probs(hidden[quirk])
            within = log_probs[:, cutoff + 1] - log_probs[:, cutoff:end].logsumexp(-1)
            nll = nll.index_put((quirk,), within, accumulate=True)
        return nll.sum()


def toy_config():
    return ModelConfig(
        vocab_size=496,
        input=AdaptiveInput(cutoffs=CUTOFFS, dim=32),
        decoder=TransformerDecoder(
            dim=32,
            num_layers=2,
            num_heads=4,
            ffn_dim=64,
            dropout=0,
            attention_dropout=0,
            relu_dropout=0,
        ),
        output=AdaptiveOutput(cutoffs=CUTOFFS, dim=32),
        tie=Tie.PROJECTIONS,
    )


def part(tensors, name, config):
    chosen = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
    return model_weights(chosen, config)


@pytest.fixture
def learner():
    config = toy_config()
    model = LanguageModel(config)
    model.load_state_dict(part(load_file(GOLDEN / "trajectory_adpt.safetensors"), "init", config))
    process = Process(0, 1, torch.device("cpu"))
    return step.Learner(
        model=model,
        scorer=PublishedLoss(model),
        optimizers=[NesterovMomentum([{"params": list(model.parameters()), "base_lr": 1.0}])],
        scale=step.LossScale(False, process.device),
        process=process,
        precision="float32",
        clip_norm=0.1,
    )


def batches_of(tensors, number):
    for index in range(2):
        words = tensors[f"batch/{number}/{index}/words"].long()
        targets = tensors[f"batch/{number}/{index}/targets"].long()
        yield Batch(words, targets, torch.ones_like(targets, dtype=torch.bool))


def test_ten_updates_equal_the_authors(learner):
    tensors = load_file(GOLDEN / "trajectory_adpt.safetensors")
    records = json.loads((GOLDEN / "trajectory_adpt.json").read_text())["steps"]
    for number, record in enumerate(records):
        rate = learning_rate(SCHEDULE, number, 100)
        assert rate == pytest.approx(record["lr_used"], rel=1e-12)
        optimizers.set_rates(learner.optimizers, rate)
        outcome = step.UpdateResult(
            *step.update(learner, list(batches_of(tensors, number))).tolist()
        )
        assert outcome.tokens == record["ntokens"]
        assert outcome.nll / outcome.tokens / math.log(2) == pytest.approx(
            record["loss_base2"], rel=1e-5
        )
        assert outcome.norm == pytest.approx(record["gnorm_before_clip"], rel=1e-4)
        name = f"params_after_{number + 1}"
        expected = part(tensors, name, toy_config())
        weights = learner.model.state_dict()
        for key, value in expected.items():
            torch.testing.assert_close(
                weights[key], value, rtol=1e-4, atol=2e-6, msg=f"{name} {key}"
            )
    # Their buffer is in units of the weights, ours in units of the gradient.
    momenta = part(tensors, "momentum_after_10", toy_config())
    for key, param in learner.model.named_parameters():
        ours = -learner.optimizers[0].state[param]["momentum_buffer"] * rate
        torch.testing.assert_close(ours, momenta[key], rtol=1e-3, atol=1e-6, msg=key)
