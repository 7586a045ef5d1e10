import multiprocessing

import pytest
import torch
from training_runs import config_of, run

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.distributed.processes import Process
from zipflm.model.language_model import LanguageModel
from zipflm.runs.load import untrained_model
from zipflm.settings import override
from zipflm.training import compilation, step
from zipflm.training.compilation import Compilation
from zipflm.training.step import build_learner

CPU = Process(0, 1, torch.device("cpu"))


class CountingBackend:
    """Runs graphs uncompiled and counts graphs and calls."""

    def __init__(self):
        self.num_graphs = self.num_calls = 0

    def __call__(self, graph, example_inputs):
        self.num_graphs += 1

        def call(*inputs):
            self.num_calls += 1
            return graph(*inputs)

        return call


@pytest.fixture
def backend(monkeypatch):
    counting = CountingBackend()
    monkeypatch.setattr(compilation, "BACKEND", counting)
    return counting


class Squares(torch.nn.Module):
    """A module that compiles fast."""

    def __init__(self, width=3):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, hidden):
        return self.linear(hidden).square()


def batch_of(rows, block):
    words = torch.randint(4, 40, (rows, block))
    return Batch(words, words, torch.ones_like(words, dtype=torch.bool))


def test_compiles_ten_models_with_two_block_lengths(backend):
    for number in range(10):
        module = Squares(width=2 + number)
        state = Compilation([module], fixed_shapes=True)
        for length in (8, 16):
            for _ in range(2):
                before = backend.num_calls
                module(torch.randn(length, 2 + number)).sum().backward()
                assert backend.num_calls == before + 1, (number, length)
        assert state.is_complete
    assert backend.num_graphs == 20


def test_a_run_compiles_once_per_block_length(word_data, tmp_path, backend):
    """Even though the last batch of an epoch is shorter. Validation is not compiled."""
    more = ["training.stages=0.5:8", "training.validate_every=5", "training.max_updates=20"]
    assert run(word_data, tmp_path / "run", "training.compile=true", *more)
    assert backend.num_graphs == 2
    assert backend.num_calls == 20 * 2


def test_does_not_compile_without_gradients(backend):
    module = Squares()
    state = Compilation([module], fixed_shapes=True)
    with torch.no_grad():
        for length in range(2, 20):
            hidden = torch.randn(length, 3)
            assert torch.equal(module(hidden), module.linear(hidden).square())
    with torch.inference_mode():
        module(torch.randn(4, 3))
    assert backend.num_graphs == 0
    assert state.is_complete


@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_detects_a_disabled_compiler(word_data, backend, fixed_shapes):
    mode = [] if fixed_shapes else ["batches.break_mode=complete"]
    config = config_of(word_data, "training.compile=true", *mode)
    learner = build_learner(config, untrained_model(config, word_data.vocabulary), CPU)
    assert learner.compiled is True
    with torch.compiler.set_stance("force_eager"):
        step.update(learner, [batch_of(4, 16)] * 3)
    assert backend.num_graphs == 0
    assert learner.compiled is False


def test_beyond_the_recompile_limit_new_versions_run_uncompiled(backend):
    module, limit = Squares(), 2
    state = Compilation([module], fixed_shapes=False)
    # Each dtype needs its own version.
    kinds = [torch.float64, torch.float32, torch.bfloat16]
    for kind in kinds:
        module.to(kind)
        with torch._dynamo.config.patch(recompile_limit=limit):
            for _ in range(3):
                hidden = torch.ones(4, 3, dtype=kind)
                output = module(hidden)
                assert torch.equal(output, module.linear(hidden).square())
        assert state.is_complete == (kind != kinds[-1])
    assert (backend.num_graphs, backend.num_calls) == (2, 6)
    module.to(kinds[0])(torch.ones(4, 3, dtype=kinds[0]))
    assert backend.num_calls == 7


def test_rejects_graph_breaks(backend):
    class Broken(Squares):
        def forward(self, hidden):
            torch._dynamo.graph_break()
            return super().forward(hidden)

    module = Broken()
    Compilation([module], fixed_shapes=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        module(torch.randn(4, 3))


def test_compiled_updates_equal_uncompiled_ones(word_data, monkeypatch):
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    results = []
    for compile in ("false", "true"):
        config = config_of(word_data, "decoder.dropout=0", f"training.compile={compile}")
        config = override(config, ["output.tail_dropout=0"])
        learner = build_learner(config, untrained_model(config, word_data.vocabulary), CPU)
        torch.manual_seed(0)
        results.append(step.update(learner, [batch_of(4, 16)] * 2))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # raised by torch
def test_with_sparse_gradients_only_the_layers_are_compiled(word_data, monkeypatch):
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    results = []
    for compile in ("false", "true"):
        untied = ["tie=none", "input.sparse=true", "output.tail_dropout=0", "decoder.dropout=0"]
        untied += ["training.optimizer=AdamW"]
        config = config_of(word_data, *untied, f"training.compile={compile}")
        learner = build_learner(config, untrained_model(config, word_data.vocabulary), CPU)
        torch.manual_seed(0)
        results.append(step.update(learner, [batch_of(4, 16)] * 2))
    assert learner.compiled and learner.num_versions == 1
    assert "forward" not in vars(learner.scorer)
    assert "forward" in vars(learner.model.decoder.layers[0])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=0)


def _train_together(rank, folder, config: Config, parallel, answers):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=2)
    backend = compilation.BACKEND = CountingBackend()
    if parallel == "tables":
        config = override(config, ["training.tables=sharded"])
    else:
        config = override(config, [f"training.parallel={parallel}"])
    process = Process(rank, 2, torch.device("cpu"))
    learner = build_learner(config, LanguageModel(config), process)
    calls = []
    for block in (8, 16):
        for _ in range(2):
            before = backend.num_calls
            step.update(learner, [batch_of(2, block)])
            calls.append(backend.num_calls - before)
        with torch.no_grad():  # as in validation, with other shapes
            for length in range(1, 13):
                batch = batch_of(3, length)
                learner.scorer(batch.words, batch.targets, batch.scored)
    answers.put((learner.compiled, backend.num_graphs, calls))
    torch.distributed.destroy_process_group()


@pytest.mark.multi_process
@pytest.mark.parametrize(("parallel", "calls"), [("ddp", 1), ("fsdp", 3), ("tables", 3)])
def test_validation_leaves_training_compiled_in_two_processes(word_data, tmp_path, parallel, calls):
    """FSDP and sharded tables compile the layers; all three share a version per length."""
    config = config_of(word_data, "decoder.num_layers=3", "training.compile=true")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zipflm.training.trainer", "torch._dynamo"])
    answers = context.Queue()
    arguments = (str(tmp_path), config, parallel, answers)
    children = [
        context.Process(target=_train_together, args=(rank, *arguments)) for rank in range(2)
    ]
    for child in children:
        child.start()
    found = [answers.get(timeout=100) for _ in children]
    for child in children:
        child.join(100)
    assert found == [(True, 2, [calls] * 4)] * 2
