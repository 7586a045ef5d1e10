"""Exported programs give the model's numbers, for shapes new to them and without the package."""

import subprocess
import sys

import pytest
import torch
from numerics import assert_close

from zipflm import LanguageModel, preset
from zipflm.model.export import export_scorer, export_step
from zipflm.overrides import override
from zipflm.recipes import resolve

pytestmark = pytest.mark.filterwarnings(
    # torch's exporter uses parts of torch that are on their way out, and reads into bytes.
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The given buffer is not writable:UserWarning",
)

SMALL = ["decoder.num_layers=1"]  # more take proportionally longer to export
MODELS = {
    "adaptive": lambda: override(preset("tiny", "ADP-T"), SMALL),
    "full": lambda: override(preset("tiny", "SM"), SMALL),
    "rotary": lambda: resolve("tiny/ADP-T", "modern", SMALL, 4000),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(0)
    return LanguageModel(MODELS[request.param]()).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "scorer.pt2"
    torch.export.save(export_scorer(model), path)
    return path


@pytest.fixture(scope="module")
def scorer(file):
    return torch.export.load(file).module()


def test_a_saved_scorer_gives_the_models_numbers(model, scorer):
    for shape in [(1, 1), (2, 3), (5, 40), (1, 7)]:
        words, targets = torch.randint(4000, (2, *shape))
        assert_close(scorer(words, targets), model.nll(words, targets), 1e-5)


def test_a_saved_scorer_refuses_ids_outside_the_vocabulary(scorer):
    words = torch.tensor([[3, 4000, 5]])
    with pytest.raises(RuntimeError, match="words: an id lies outside the vocabulary of 4000"):
        scorer(words, words.clamp(max=3))


def test_saved_steps_give_the_models_numbers(model, tmp_path):
    torch.export.save(export_step(model), tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    config = model.config.decoder
    for rows in (1, 5):
        words = torch.randint(4000, (rows, 4))
        whole = model.log_probs(words)
        width = config.dim // config.num_heads
        keys = values = torch.zeros(config.num_layers, rows, config.num_heads, 0, width)
        for position in range(4):
            log_probs, keys, values = step(words[:, position], keys, values)
            assert_close(log_probs, whole[:, position], 1e-5)
        assert keys.shape[3] == values.shape[3] == 4


# The one model that has all of our operators, since a process of its own takes seconds.
@pytest.mark.parametrize("model", ["rotary"], indirect=True)
def test_a_program_runs_where_the_package_is_not_installed(model, file):
    words = torch.arange(10).view(2, 5)
    code = (
        "import sys, warnings; sys.modules['zipflm'] = None; warnings.simplefilter('ignore')\n"
        "import torch; words = torch.arange(10).view(2, 5)\n"
        f"scorer = torch.export.load({str(file)!r}).module()\n"
        "print(scorer(words, words).sum().item())\n"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert float(printed) == pytest.approx(model.nll(words, words).sum().item(), rel=1e-5)


def test_a_model_in_training_mode_is_refused():
    model = LanguageModel(preset("tiny", "SM"))
    for export in (export_scorer, export_step):
        with pytest.raises(ValueError, match="training mode.*model.eval"):
            export(model)
