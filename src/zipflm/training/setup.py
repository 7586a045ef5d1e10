"""Everything a run needs before its first update: checks, model, optimizers, and where it
starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zipflm import __version__
from zipflm.config import Config, require
from zipflm.data.batches import Batches
from zipflm.data.folder import CODES_FILE, VOCABULARY_FILE, DataFolder
from zipflm.data.vocabulary import CONTINUES
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder, problem_alone
from zipflm.runs.load import empty_model, first_values
from zipflm.runs.records import Place, TrainingState
from zipflm.settings import to_dict
from zipflm.training import distributed, optimizers, parallel, step
from zipflm.training.compilation import Compilation
from zipflm.training.distributed import Process
from zipflm.training.metrics import Log, Tally
from zipflm.training.schedule import stretched
from zipflm.training.step import Learner
from zipflm.training.stream import Stream, block_at, blocks_of


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
        text = Batches(tokens, blocks, max_tokens=config.batches.tokens, shuffle=True)
        batches = training.tokens_per_update / tokens_per_batch(config, block)
        epochs_per_update += (end - start) * batches / text.num_batches
        start = end
    # A whole number of updates may be off by the last bit.
    return stretched(config, max(1, math.ceil(training.epochs / epochs_per_update - 1e-6)))


def accumulation(config: Config, process: Process, block: int | None = None) -> int:
    """How many batches each process accumulates for an update, with blocks of this length
    (`batches.block` by default). ValueError unless every block length of the run allows for a
    whole number."""
    wanted = config.training.tokens_per_update
    at_once = {b: tokens_per_batch(config, b) * process.world_size for b in blocks_of(config)}
    if wanted % (common := math.lcm(*at_once.values())):
        short = next(b for b, tokens in at_once.items() if wanted % tokens)
        nearest = max(round(wanted / common), 1) * common
        raise ValueError(
            f"training.tokens_per_update={wanted}: not a multiple of the {at_once[short]} tokens "
            f"that {process.world_size} device(s) x {_batch(config, short)} process at once; use "
            f"training.tokens_per_update={nearest}, or change batches.tokens"
        )
    return wanted // (tokens_per_batch(config, block or config.batches.block) * process.world_size)


def inputs(config: Config, data: DataFolder) -> dict[str, object]:
    """Everything that must be the same in all processes of a run, by name."""
    texts = {f"the {split} text": data.split(split).sha256 for split in data.splits}
    packages = {"zipflm": __version__, "torch": torch.__version__}
    return {"the vocabulary": data.vocabulary.hash} | texts | packages | _flat(to_dict(config))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def check_processes(config: Config, process: Process) -> None:
    """ValueError if several processes cannot make the config's updates together."""
    is_on_gpus = process.world_size > 1 and process.device.type == "cuda"
    require(
        not (config.input.has_sparse_gradients and is_on_gpus),
        "input.sparse",
        True,
        f"{process.world_size} processes exchange sparse gradients through gloo alone, and those "
        "on GPUs use NCCL; use one process or CPUs, or leave input.sparse out",
    )


def tokens_per_batch(config: Config, block: int) -> int:
    """Tokens that go through a device at once: whole blocks, or an upper limit for sentences."""
    tokens = config.batches.tokens
    return tokens // block * block if config.batches.break_mode == "none" else tokens


def _batch(config: Config, block: int) -> str:
    """A batch in words: `batches.tokens`, or what is left of them in whole blocks."""
    tokens = tokens_per_batch(config, block)
    if tokens == config.batches.tokens:
        return f"batches.tokens={tokens}"
    return f"{tokens} tokens (whole blocks of {block} in batches.tokens={config.batches.tokens})"


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
    if config.batches.break_mode != "none":
        number = f"at most {number}, padding included,"
    blocks = f" ({tokens // block} x {block})" if tokens != config.batches.tokens else ""
    return (
        f"{number} = {process.world_size} device(s) x {tokens:,} tokens{blocks} x "
        f"{accumulation(config, process, block)} accumulated"
    )


def build_learner(
    config: Config,
    model: LanguageModel,
    process: Process,
    ends_word: Tensor | None = None,
    fill: Callable[[], None] | None = None,
) -> Learner:
    """The model on its device, with everything that trains it.

    `fill` is for a model on the meta device, which gets memory where it is to be trained, and
    then its values from `fill`; any other model is moved there. `ends_word` [V] tells which ids
    end a word; without it, all do.
    """
    training = config.training
    model.decoder.set_recompute(training.recompute)
    tables = parallel.share_tables(model, process, training.tables)
    scorer = step.Scorer(model)
    compilation = None
    if training.compile:
        # FSDP gathers the weights of one layer at a time, between layers, and tokens come to
        # sharded tables before the first and behind the last: not inside compiled code. Nor can
        # that return a sparse gradient.
        shards = parallel.shards(process, training.parallel) or bool(tables)
        by_layer = shards or config.input.has_sparse_gradients
        compilation = Compilation(
            model.decoder.layers if by_layer else [scorer], config.batches.break_mode == "none"
        )
    accumulates = max(accumulation(config, process, block) for block in blocks_of(config)) > 1

    def place() -> None:
        if fill is None:
            model.to(process.device)
            return
        parallel.allocate(model, process.device)
        fill()

    policy = parallel.sharded_precision(training.dtype, accumulates)
    wrapped = parallel.wrap(scorer, model, process, training.parallel, policy, place, tables)
    return Learner(
        model=model,
        scorer=wrapped,
        optimizers=optimizers.build(training.optimizer, model),
        scale=step.LossScale(training.dtype == "float16", process.device),
        process=process,
        precision=training.dtype,
        clip_norm=training.clip_norm,
        ends_word=None if ends_word is None else ends_word.to(process.device),
        compilation=compilation,
        tables=[model.get_parameter(name) for name in tables],
    )


def newest_good(
    folder: RunFolder, process: Process, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint to resume from: each process verifies some of its files.

    ValueError in all of them if they do not see the same checkpoints.
    """

    def problem_of(checkpoint: Checkpoint | None) -> str | None:
        update = None if checkpoint is None else checkpoint.update
        distributed.require_same(
            {"the newest checkpoint's update": update},
            process,
            "--out must be a folder that all machines share",
        )
        problem = problem_alone(checkpoint, (process.rank, process.world_size))
        return next((found for found in process.all_values(problem) if found), None)

    return folder.newest_good(warn, problem_of)


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
    update, place, state = 0, Place(), None
    tally = Tally(cpu_seconds=0.0 if counts_cpu else None)
    if found is not None:
        state = found.state()
        assert isinstance(state, TrainingState)  # `resume.check` refuses runs from elsewhere
        optimizers.load_tensors(learner.optimizers, model, found.stored_optimizer())
        learner.scale.load(state.loss_scale)
        update, place, tally = state.update, state.place, _tally(state, counts_cpu)
        log.say(f"resuming after update {update}")
    stream = Stream(config, data.tokens("train"), process, place, block_at(config, update))
    run = Run(config, data, folder, process, learner, stream, tally, log, update)
    if isinstance(state, TrainingState):
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


def _tally(state: TrainingState, counts_cpu: bool) -> Tally:
    return Tally(
        state.seconds,
        state.skipped,
        update=state.update,
        skipped_in_a_row=state.skipped_in_a_row,
        since_report=state.since_report,
        compile_seconds=state.compile_seconds,
        cpu_seconds=state.cpu_seconds if counts_cpu else None,
    )
