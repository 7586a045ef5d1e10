"""Everything a run needs before its first update: checks, model, optimizers, and where it
starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from zipflm import __version__
from zipflm.config import Config, require
from zipflm.data.batches import Batches
from zipflm.data.folder import CODES_FILE, VOCABULARY_FILE, DataFolder
from zipflm.data.vocabulary import CONTINUES
from zipflm.model.language_model import LanguageModel
from zipflm.runs import resume as resuming
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import empty_model, first_values
from zipflm.runs.provenance import origin_of
from zipflm.runs.records import Place, TrainingState
from zipflm.settings import to_dict
from zipflm.training import optimizers, parallel, throughput
from zipflm.training.carried_state import carried_state
from zipflm.training.distributed import Process
from zipflm.training.metrics import Log, Tally
from zipflm.training.schedule import ends_too_high, stretched
from zipflm.training.step import Learner, build_learner
from zipflm.training.stream import Stream, accumulation, block_at, blocks_of, tokens_per_batch


@dataclass
class Run:
    """One process's view of a run; all processes have the same numbers in it."""

    config: Config
    data: DataFolder
    folder: RunFolder
    process: Process
    learner: Learner
    stream: Stream
    tally: Tally
    log: Log
    update: int
    """Updates done."""
    compiled_blocks: set[int] = field(default_factory=set)
    """Lengths of blocks for which the model was compiled, or is about to be."""
    seconds_per_scored_word: float = 0.0
    """Of the last pass over the valid set, 0 before it."""
    whole_validation: bool = True
    """Score the whole valid set when a checkpoint is saved and at the end."""
    best_loss: float | None = None
    """Lowest loss on the part of the valid set that is always scored."""
    since_best: int = 0
    """Validations since then."""

    def see_valid(self, loss: float | None) -> None:
        """Note whether a validation improves on the best one."""
        best = math.inf if self.best_loss is None else self.best_loss
        if loss is not None and loss < best:
            self.best_loss, self.since_best = loss, 0
        else:
            self.since_best += 1

    @property
    def stops_early(self) -> bool:
        """The valid loss has not improved for too long."""
        return 0 < self.config.training.patience <= self.since_best

    @property
    def saves_now(self) -> bool:
        """The last validation is a reason to save a checkpoint."""
        return self.stops_early or (self.config.training.patience > 0 and self.since_best == 0)


# In a text of pieces every few words have subword-nmt's mark, in a text of words next to none.
_SHARE_OF_CONTINUED_WORDS = 0.05


def checked(config: Config, data: DataFolder, initial: Checkpoint | None = None) -> Config:
    """The config, its length in updates; ValueError if it cannot be trained on this folder, with
    the weights of `initial`."""
    if initial is not None:
        check_initial(initial, config, data)
    check_data(config, data)
    return in_updates(config, data)


def check_data(config: Config, data: DataFolder) -> None:
    """ValueError if the config is not made for this folder's ids."""
    if config.batches.unit != data.unit:
        remedy = "with --bpe" if config.batches.unit == "bpe" else "without --bpe"
        raise ValueError(
            f"{data.path}: its unit is {data.unit}, but {config.name} reads {config.batches.unit}; "
            f"prepare a folder {remedy}, or choose another factorization"
        )
    train = data.facts.splits.get("train")
    if train and data.unit == "word" and train.continued > _SHARE_OF_CONTINUED_WORDS * train.words:
        raise ValueError(
            f"{data.path}: {train.continued:,} of the {train.words:,} words of its training text "
            f"end in {CONTINUES}: it was split into pieces before, which would pass for words; "
            "prepare the text of whole words, with --bpe or --bpe-codes"
        )
    if config.vocab_size != len(data.vocabulary):
        raise ValueError(
            f"vocab_size={config.vocab_size}: {data.path} has {len(data.vocabulary)} ids; use "
            "recipes.resolve or fit_vocabulary to fit the config to the folder"
        )
    require(
        not config.training.patience or "valid" in data.splits,
        "training.patience",
        config.training.patience,
        f"{data.path} has no valid set to watch; prepare it with one (--valid)",
    )


def check_initial(initial: Checkpoint, config: Config, data: DataFolder) -> None:
    """ValueError unless a run with this config can start on the folder with these weights."""
    codes, splitting = initial.codes(), initial.splitting()
    is_same = (
        initial.vocabulary().hash == data.vocabulary.hash
        and (codes and codes.hash) == (data.codes and data.codes.hash)
        and splitting == data.splitting
    )
    if not is_same:
        options = [f"--vocabulary {initial.path / VOCABULARY_FILE}"]
        if codes is not None:
            options.append(f"--bpe-codes {initial.path / CODES_FILE}")
        raise ValueError(
            f"{data.path}: not prepared with the vocabulary of {initial.path}; prepare the text "
            f"again: zipflm prepare {' '.join(options)} {splitting}"
        )
    _require_weights_of(empty_model(config, data.vocabulary), initial)


def in_updates(config: Config, data: DataFolder) -> Config:
    """The config with its length in updates, if `training.epochs` asks for passes over the text."""
    training = config.training
    if not training.epochs:
        return config
    epochs_per_update, start = 0.0, 0.0
    for end, block in (*training.stages, (1.0, config.batches.block)):
        blocks = replace(config.batches.blocks, block=block)
        tokens = data.tokens("train")
        text = Batches(
            tokens,
            blocks,
            max_tokens=config.batches.tokens,
            shuffle=True,
            streams=training.tokens_per_update // block,
        )
        batches = training.tokens_per_update / tokens_per_batch(config, block)
        epochs_per_update += (end - start) * batches / text.num_batches
        start = end
    # A whole number of updates may be off by the last bit.
    return stretched(config, max(1, math.ceil(training.epochs / epochs_per_update - 1e-6)))


_SAME = "give all processes the same command, data and packages"


def check_processes(config: Config, data: DataFolder, process: Process) -> None:
    """ValueError in all processes if they cannot make the config's updates together, or do not
    have the same input."""
    accumulation(config, process)  # an error if no whole number of batches makes an update
    is_on_gpus = process.world_size > 1 and process.device.type == "cuda"
    require(
        not (config.input.has_sparse_gradients and is_on_gpus),
        "input.sparse",
        True,
        f"{process.world_size} processes exchange sparse gradients through gloo alone, and those "
        "on GPUs use NCCL; use one process or CPUs, or leave input.sparse out",
    )
    texts = {f"the {split} text": data.split(split).sha256 for split in data.splits}
    packages = {"zipflm": __version__, "torch": torch.__version__}
    same = {"the vocabulary": data.vocabulary.hash} | texts | packages | _flat(to_dict(config))
    process.require_same(same, _SAME)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def overview(config: Config, process: Process) -> Iterator[str]:
    """Lines on the size of each part of the model and on how the tokens of an update add up."""
    parts = config.params_by_part()
    width = max(map(len, parts))
    yield f"{config.name}: {config.num_params():,} parameters"
    for part, count in parts.items():
        yield f"  {part:{width}}  {count:>13,}"
    yield from dict.fromkeys(_update_line(config, process, block) for block in blocks_of(config))
    if config.training.tables == "sharded" and process.world_size > 1:
        rest = "; of the model, the decoder alone is compiled" if config.training.compile else ""
        yield f"each of {process.world_size} devices has its own rows of the tables{rest}"


def _update_line(config: Config, process: Process, block: int) -> str:
    tokens = tokens_per_batch(config, block)
    number = f"{config.training.tokens_per_update:,} tokens per update"
    if not config.batches.blocks.has_one_length:
        number = f"at most {number}, padding included,"
    blocks = f" ({tokens // block} x {block})" if tokens != config.batches.tokens else ""
    return (
        f"{number} = {process.world_size} device(s) x {tokens:,} tokens{blocks} x "
        f"{accumulation(config, process, block)} accumulated"
    )


def open_run(
    config: Config,
    data: DataFolder,
    folder: RunFolder,
    process: Process,
    *,
    resume: bool,
    other_text: bool,
    initial: Checkpoint | None,
) -> Run | None:
    """The run, ready for its next update, in a folder that says what it is; None if it is finished.

    ValueError if it may not be started or continued there.
    """
    resuming.check(folder, config, data, resume=resume, other_text=other_text)
    training = config.training
    log = Log(folder, training.max_updates, not process.is_first, training.tensorboard)
    # All look at the folder before the first process changes it, and after.
    found = newest_good(folder, process, log.say) if resume else None
    if found is not None and _is_finished(config, found):
        field = "max_updates" if found.update >= training.max_updates else "patience"
        log.say(
            f"{folder.path}: already finished (update {found.update} of {training.max_updates}); "
            f"to go on raise training.{field}"
        )
        return None
    origin = None
    if initial is not None and found is None:
        origin = origin_of(initial)
        process.require_same({"the initial weights": origin.weights}, _SAME)
        process.let_first(partial(initial.verify, optimizer=False))
    used = ["train"] + (["valid"] if "valid" in data.splits else [])
    process.let_first(lambda: data.verify(*used))
    process.require_shared(folder.path)
    done = found.update if found else 0

    def open_folder() -> None:
        folder.open(config, data, done, throughput.device_name(process.device), origin)
        for path in folder.set_aside(done) if found else ():
            log.say(f"the damaged checkpoint was moved out of the way, to {path}")

    process.let_first(open_folder)
    for line in overview(config, process):
        log.say(line)
    doubts = [ends_too_high(config)]
    if process.is_first and process.device.type == "cpu":
        work = throughput.work(config, data.vocabulary.counts, done)
        doubts += [throughput.slowness(work, config.name), throughput.load()]
    for doubt in filter(None, doubts):
        log.say(f"warning: {doubt}")
    if origin is not None:
        log.say(f"starting with the weights of {origin.checkpoint} of {origin.run}")
    remedy = (
        f"{config.name}: no room for its {config.num_params():,} parameters on "
        f"{process.world_size} device(s); lower decoder.num_layers or decoder.dim, or shard it "
        "over more of them with training.parallel=fsdp"
    )
    with explaining_no_room(remedy):
        return begin(config, data, folder, process, log, found, initial)


def newest_good(
    folder: RunFolder, process: Process, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The newest checkpoint that is not damaged, or None if the run has none at all; each process
    verifies some of its files.

    Each damaged one is reported by name; ValueError in all processes if there is no other, or if
    they do not see the same ones.
    """
    found = folder.checkpoints()
    process.require_same(
        {"the checkpoints' updates": [checkpoint.update for checkpoint in found]},
        "--out must be a folder that all machines share",
    )

    def problem_here(checkpoint: Checkpoint) -> str:
        try:
            checkpoint.check(share=(process.rank, process.world_size))
        except (ValueError, OSError) as error:
            return str(error)
        return ""

    for checkpoint in found:
        problem = next(filter(None, process.all_values(problem_here(checkpoint))), None)
        if problem is None:
            return checkpoint
        warn(f"{problem}; falling back to the checkpoint before it")
    if found:
        raise ValueError(
            f"{folder.path}: none of its {len(found)} checkpoints can be read; restore one of "
            "them, or remove the folder to train again"
        )
    return None


def _is_finished(config: Config, checkpoint: Checkpoint) -> bool:
    state, training = checkpoint.state(), config.training
    if isinstance(state, TrainingState) and 0 < training.patience <= state.since_best:
        return True
    return checkpoint.update >= training.max_updates


def begin(
    config: Config,
    data: DataFolder,
    folder: RunFolder,
    process: Process,
    log: Log,
    found: Checkpoint | None,
    initial: Checkpoint | None = None,
) -> Run:
    """The run, ready for its next update: after that of `found`, or the first one, with the weights
    of `initial` or random ones."""
    model = empty_model(config, data.vocabulary)
    weights = found or initial
    if weights is None:
        fill = partial(parallel.fill, model, first_values(model, config.training.seed))
    else:
        fill = partial(_load_weights, model, weights)
    ends_word = torch.from_numpy(data.ends_word) if config.batches.unit == "bpe" else None
    learner = build_learner(config, model, process, ends_word, fill)
    counts_cpu = process.device.type == "cpu" and process.world_size == 1
    if found is None:
        tally = Tally(cpu_seconds=0.0 if counts_cpu else None)
        stream = Stream(config, data.tokens("train"), process, Place(), block_at(config, 0))
        learner.carried = carried_state(config, model, process, stream.block)
        return Run(config, data, folder, process, learner, stream, tally, log, update=0)
    state = found.state()
    assert isinstance(state, TrainingState)  # `resume.check` refuses runs from elsewhere
    optimizers.load_tensors(learner.optimizers, model, found.stored_optimizer())
    learner.scale.load(state.loss_scale)
    tally = Tally(
        update=state.update,
        seconds=state.seconds,
        compile_seconds=state.compile_seconds,
        cpu_seconds=state.cpu_seconds if counts_cpu else None,
        skipped=state.skipped,
        skipped_in_a_row=state.skipped_in_a_row,
        since_report=state.since_report,
    )
    log.say(f"resuming after update {state.update}")
    block = block_at(config, state.update)
    stream = Stream(config, data.tokens("train"), process, state.place, block)
    learner.carried = carried_state(config, model, process, block)
    if learner.carried is not None and stream.place == state.place:  # the same rows go on
        learner.carried.load(found.stored_optimizer())
    run = Run(config, data, folder, process, learner, stream, tally, log, state.update)
    run.best_loss, run.since_best = state.best_loss, state.since_best
    return run


def _load_weights(model: LanguageModel, checkpoint: Checkpoint) -> None:
    _require_weights_of(model, checkpoint)
    checkpoint.stored_weights().load_into(model.state_dict())


def _require_weights_of(model: LanguageModel, checkpoint: Checkpoint) -> None:
    """ValueError if the weights of a checkpoint are those of another model."""
    stored = checkpoint.stored_weights()
    needed = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(needed.keys() | stored.shapes.keys()):
        if needed.get(name) != stored.shapes.get(name):
            raise ValueError(
                f"{checkpoint.path}: its {name} is {stored.shapes.get(name, 'missing')}, and the "
                f"model's {needed.get(name, 'none')}; use a checkpoint of the same model"
            )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the host in torch's allocator, ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def explaining_no_room(remedy: str) -> Iterator[None]:
    """ValueError with this remedy if memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(remedy) from None


def remedy_for_updates(config: Config) -> str:
    """What to change if an update does not fit."""
    tokens = config.batches.tokens
    remedy = (
        f"batches.tokens={tokens}: no room for a batch of that size; lower it, for example to "
        f"{tokens // 2}: gradients are then accumulated, and training.tokens_per_update stays the "
        "same"
    )
    if config.training.recompute != "layer":
        remedy += (
            "; or set training.recompute=layer, which keeps far less of every layer for the "
            "backward pass and computes it again, in about a fifth more time"
        )
    return remedy
