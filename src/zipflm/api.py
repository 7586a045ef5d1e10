"""Python functions for the commands: `zipflm.prepare`, `train`, `evaluate`, `compare`, `report`,
`build_memory` and `tune_memory`.

    data = zipflm.prepare("train.txt", valid="valid.txt", out="data/words")
    run = zipflm.train("tiny/ADP-T", {"training.max_updates": 500}, data=data, out="runs/first")
    print(zipflm.evaluate(run, data=data, split="valid").perplexity)

Arguments are named after the command-line options, except `from_run` (`--from`) and `break_mode`
(`--break`), and have the same defaults, except that `prepare` uses one process. Overrides are a
dict, or a list of `key=value` and `@file` (a file of such lines).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from zipflm.distributed import STALL_SECONDS

if TYPE_CHECKING:
    from zipflm.config import Config, Splitting
    from zipflm.data.folder import DataFolder
    from zipflm.evaluation.protocol import Evaluation
    from zipflm.memory.specs import MemoryNames
    from zipflm.memory.store import StoreInfo
    from zipflm.memory.tuning import TuningResult
    from zipflm.runs.checkpoint import Checkpoint
    from zipflm.runs.folder import Choice, RunFolder
    from zipflm.runs.load import LoadedRun
    from zipflm.studies.compare import FinishedStudy

Source = str | PathLike[str]
Sources = Source | Sequence[Source] | None
Overrides = Sequence[str] | Mapping[str, Any]


def prepare(
    texts: Sources = None,
    *,
    out: Source,
    corpus: str | None = None,
    valid: Sources = None,
    test: Sources = None,
    ids: Sources = None,
    names: Source | None = None,
    min_count: int | None = None,
    max_size: int | None = None,
    vocabulary: Source | None = None,
    bpe: int | None = None,
    bpe_codes: Source | None = None,
    words: str | None = None,
    lowercase: bool = False,
    errors: str = "strict",
    encoding: str = "utf-8",
    processes: int | None = 1,
    engine: str = "processes",
    scheduler: str | None = None,
    cache: Source | None = None,
    report: Callable[[str, int, int | None], None] | None = None,
) -> DataFolder:
    """Create a data folder from text, a named corpus, or sequences of integers.

    `texts`, `valid`, `test` and `ids` are each a file, glob or URL, or a list of them. `words` is
    the rule for splitting raw text: whitespace, words or wikitext. `vocabulary` can be a vocabulary
    file, or a run, checkpoint or data folder, whose splitting into words and subwords is then
    used as well. With more than one process (None: one per core), call this under
    `if __name__ == "__main__":`. `report` is a progress callback. It is called with the current
    task, the number of bytes just read, and the total number of bytes, or None if unknown.
    """
    from zipflm.data.corpora import corpus_texts
    from zipflm.data.prepare import Options
    from zipflm.data.prepare import prepare as prepare_texts
    from zipflm.data.scan import default_processes
    from zipflm.storage import refuse_existing

    training = _sources(texts)
    if ids and training:
        raise ValueError(f"{training[0]}: cannot be combined with ids; use either text or ids")
    if vocabulary is not None and (Path(vocabulary).is_dir() or _is_bundled(vocabulary)):
        vocabulary, codes_in_folder = _vocabulary_files(Path(vocabulary))
        bpe_codes = codes_in_folder if bpe_codes is None else bpe_codes
    options = Options(
        min_count=min_count,
        max_size=max_size,
        vocabulary=vocabulary,
        bpe=bpe,
        bpe_codes=bpe_codes,
        splitting=splitting_of(words, lowercase, vocabulary, bpe_codes),
        errors=errors,  # type: ignore[arg-type]  # checked by the callee
        encoding=encoding,
        ids=bool(ids),
        names=names,
    )
    splits = {
        "train": _sources(ids) or training,
        "valid": _sources(valid),
        "test": _sources(test),
    }
    reading: dict[str, Any] = {
        "processes": default_processes() if processes is None else processes,
        "scheduler": _scheduler(engine, scheduler),
        "report": report or (lambda task, done, total: None),
    }
    if corpus is None:
        return prepare_texts(out, splits, options, **reading)
    if any(splits.values()):
        raise ValueError(f"corpus={corpus}: cannot be combined with other texts; leave them out")
    refuse_existing(out)  # before the download
    folder = Path.home() / ".cache" / "zipflm" if cache is None else Path(cache)
    with corpus_texts(corpus, folder, reading["report"]) as corpus_splits:
        return prepare_texts(out, corpus_splits, options, **reading)


def splitting_of(
    words: str | None,
    lowercase: bool,
    vocabulary: Source | None = None,
    bpe_codes: Source | None = None,
) -> Splitting:
    """Return the rule for splitting text into words: the given one, or by default the one stored
    next to a vocabulary file.

    Raises ValueError if the vocabulary has subwords and `bpe_codes` is missing.
    """
    from zipflm.config import PLAIN, Rule, Splitting
    from zipflm.data.folder import CODES_FILE, METADATA_FILE, SPLITTING_FILE, read_metadata
    from zipflm.settings import read_record

    if words is not None and words not in get_args(Rule):
        raise ValueError(f"words={words}: choose from {', '.join(get_args(Rule))}")
    stored, folder = PLAIN, Path(vocabulary or "").parent
    if vocabulary is not None and (folder / METADATA_FILE).is_file():
        metadata = read_metadata(folder)
        stored = metadata.splitting
        if metadata.bpe is not None and bpe_codes is None:
            raise ValueError(
                f"vocabulary={fspath(vocabulary)}: contains subwords; also pass its BPE codes, "
                f"{folder / CODES_FILE}"
            )
    elif vocabulary is not None and (folder / SPLITTING_FILE).is_file():
        stored = read_record(Splitting, folder / SPLITTING_FILE)
    return Splitting(words or stored.rule, lowercase or stored.lowercase)  # type: ignore[arg-type]


def train(
    preset: str | None = None,
    overrides: Overrides = (),
    *,
    data: DataFolder | Source,
    out: Source,
    recipe: str = "paper",
    from_run: RunFolder | Source | None = None,
    resume: bool = False,
    resume_if_any: bool = False,
    keep: int = 3,
    other_text: bool = False,
    device: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> RunFolder:
    """Train a model and return its run, for `load` and `evaluate`.

    Pass `from_run` instead of a preset to start from the config and weights of another run or
    checkpoint, with a new optimizer state and the schedule from its start. In that case, `data`
    must be prepared with the vocabulary of that run.

    `resume=True` continues the run in `out`. `resume_if_any=True` does the same, but starts a new
    run if `out` does not have one.

    After the first update, Ctrl-C and SIGTERM save a checkpoint and raise KeyboardInterrupt. With
    a single process, the same happens if the program that reads stdout exits.
    """
    from zipflm.distributed import processes
    from zipflm.presets.recipes import resolve, with_default_dtype, with_overrides
    from zipflm.runs.folder import RunFolder, locate
    from zipflm.training.trainer import train as train_run

    run_folder, changes = RunFolder(Path(out)), assignments(overrides)
    is_resumed = (resume or resume_if_any) and run_folder.holds_a_run

    def read_inputs() -> tuple[DataFolder, Config, Checkpoint | None]:
        is_missing = not is_resumed and not run_folder.checkpoints()
        if resume and not resume_if_any and is_missing:
            raise ValueError(
                f"resume=True: no run in {run_folder.path}; check the path, or leave out resume to "
                "start a new run"
            )
        folder, held = _open(data), run_folder.config() if is_resumed else None
        on_cpu = process.device.type == "cpu"
        if from_run is None:
            if preset is None:
                raise ValueError(
                    "preset: missing; name one, e.g. tiny/ADP-T, or a run to start from"
                )
            size = len(folder.vocabulary)
            return folder, resolve(preset, recipe, changes, size, on_cpu=on_cpu, held=held), None
        if preset is not None or recipe != "paper":
            raise ValueError(
                f"{preset or recipe}: leave it out, because model and recipe come from "
                f"{fspath(from_run)}; change settings with overrides"
            )
        _, initial = locate(Path(from_run), None)
        config = with_default_dtype(initial.config(), on_cpu=on_cpu, held=held)
        return folder, with_overrides(config, changes), initial

    with processes.started(device, stall_seconds) as process:
        folder, config, initial = process.run_on_all(read_inputs)
        is_finished = train_run(
            config,
            folder,
            run_folder.path,
            resume=resume or resume_if_any,
            keep=keep,
            device=device,
            other_text=other_text,
            initial=initial,
        )
    if not is_finished:
        raise KeyboardInterrupt
    return run_folder


def evaluate(
    run: LoadedRun | RunFolder | Source,
    *,
    data: DataFolder | Source | None = None,
    split: str | None = None,
    text: Source | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
    block: int | None = None,
    context: int | None = None,
    break_mode: str | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    dtype: str = "float32",
    checkpoint: Choice | str | None = None,
    memory: MemoryNames = (),
) -> Evaluation:
    """Compute the perplexity of a run on a split (test by default) of `data`, or on a text file.

    `memory` is a cache of recent tokens (`cache:2000`), a folder from `build_memory`, or a list of
    them. Its predictions are mixed with those of the model.

    With torchrun, each process scores a part of the text, and all return the same result.
    """
    from zipflm.distributed import processes
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.evaluation.evaluate import evaluate as score
    from zipflm.memory.specs import memory_names

    options = ScoringOptions(
        block=block,
        context=context,
        break_mode=break_mode,  # type: ignore[arg-type]  # checked by the callee
        batch_tokens=batch_tokens,
        device=device,
        dtype=dtype,  # type: ignore[arg-type]  # checked by the callee
        memory=memory_names(memory),
    )
    with processes.started(device) as process:
        return score(
            run,
            data=data,
            split=split,
            text=text,
            checkpoint=_choice(checkpoint),
            options=options,
            encoding=encoding,
            errors=errors,  # type: ignore[arg-type]  # checked by the callee
            process=process,
        )


def compare(
    overrides: Overrides = (),
    *,
    data: DataFolder | Source,
    preset: str,
    out: Source,
    factorizations: Sequence[str] = (),
    seeds: int = 1,
    recipe: str = "paper",
    bands: Sequence[str] = (),
    tail_dropout: Sequence[float] = (),
    decoders: Sequence[str] = (),
    equal: str = "updates",
    grid: Sequence[str] = (),
    memory: Sequence[str] = (),
    device: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> FinishedStudy:
    """Train several factorizations on the same text and write a report that compares them.

    A factorization is a combination of input and output layers, such as `ADP-T`. The default is the
    one named in `preset` (SM for `demo/SM`); otherwise `ADP-T` if `bands`, `tail_dropout` or
    `decoders` is given, else all eight of the paper. With `decoders` (`transformer`, `gcnn`,
    `lstm`, `qrnn`), every factorization is trained with each of these decoders. `grid` lists
    settings with values to try, e.g. `decoder.dropout=0.1,0.2`; every model uses the values
    that give it the lowest loss on the validation set. With `memory` (`cache:2000`), every model is
    also scored with that cache. The result contains the study, the path of the report and the
    failures.
    """
    from zipflm.distributed import processes
    from zipflm.studies.compare import compare as run_study
    from zipflm.studies.plan import Request

    lists = {"factorizations": factorizations, "bands": bands, "decoders": decoders}
    for name, given in (lists | {"grid": grid, "memory": memory}).items():
        if isinstance(given, str):
            raise ValueError(f"{name}={given}: must be a list, not a string")
    request = Request(
        data=_path(data),
        preset=preset,
        out=Path(out),
        factorizations=tuple(factorizations),
        seeds=seeds,
        recipe=recipe,
        overrides=tuple(assignments(overrides)),
        bands=tuple(bands),
        tail_dropout=tuple(tail_dropout),
        decoders=tuple(decoders),
        equal=equal,
        grid=tuple(grid),
        memory=tuple(memory),
    )
    with processes.started(device, stall_seconds):
        return run_study(request, device=device)


def report(
    runs: Source | Sequence[Source],
    *,
    data: DataFolder | Source,
    out: Source,
    context_sizes: Sequence[int] = (),
    block: int | None = None,
    checkpoint: Choice | str | None = None,
    device: str | None = None,
) -> FinishedStudy:
    """Score runs and write a report with losses by word frequency, figures and word lists.

    `runs` is a run folder or checkpoint, or a list of them. It can also be the folder of a study,
    or several with different seeds, whose saved scores are combined into one report.
    """
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.studies.analyze import analyze
    from zipflm.studies.compare import FinishedStudy
    from zipflm.studies.redraw import is_study, redraw

    paths, choice = [Path(run) for run in _sources(runs)], _choice(checkpoint)
    if not paths:
        raise ValueError("runs: empty; give a run, a list of runs or a study")
    source, target = _path(data), Path(out)
    studies = [path for path in paths if is_study(path)]
    if studies and len(studies) < len(paths):
        other = next(path for path in paths if path not in studies)
        raise ValueError(f"{other}: not a study like {studies[0]}; give only studies or only runs")
    if studies:
        if context_sizes or block is not None or choice is not None:
            raise ValueError(
                f"{paths[0]}: a study is redrawn from its saved scores; for other contexts, blocks "
                "or checkpoints, pass the runs in its members/"
            )
        study = redraw(paths, source, target)
    else:
        options = ScoringOptions(block=block, device=device)
        study = analyze(
            paths, source, target, checkpoint=choice, context_sizes=context_sizes, options=options
        )
    return FinishedStudy(study, target / "report.html", stopped=False)


def build_memory(
    run: LoadedRun | RunFolder | Source,
    *,
    data: DataFolder | Source,
    out: Source,
    split: str = "train",
    max_keys: int | None = None,
    dtype: str = "float16",
    index: bool = False,
    block: int | None = None,
    context: int | None = None,
    checkpoint: Choice | str | None = None,
    device: str | None = None,
) -> StoreInfo:
    """Build a store for `memory=` of `evaluate`: the tokens of a split, each with the hidden state
    that predicts it as its key.

    With `max_keys`, only the first `max_keys` tokens are stored. `index=True` builds an index for
    search on a CPU, which needs faiss.
    """
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.memory.building import build

    return build(
        _load(run, checkpoint),
        _open(data),
        Path(out),
        split=split,
        max_keys=max_keys,
        dtype=dtype,  # type: ignore[arg-type]  # checked by the callee
        index=index,
        options=ScoringOptions(block=block, context=context, device=device),
    )


def tune_memory(
    run: LoadedRun | RunFolder | Source,
    *,
    data: DataFolder | Source,
    split: str = "valid",
    memory: MemoryNames = "cache",
    block: int | None = None,
    context: int | None = None,
    checkpoint: Choice | str | None = None,
    device: str | None = None,
) -> TuningResult:
    """Tune the settings of memories, such as weight and temperature, on a split, and save them.

    The values for a cache are saved in the run folder, those for a store in the store.
    """
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.memory.specs import memory_names
    from zipflm.memory.tuning import tune

    return tune(
        _load(run, checkpoint),
        _open(data),
        memory_names(memory),
        split=split,
        options=ScoringOptions(block=block, context=context, device=device),
    )


def assignments(overrides: Overrides) -> list[str]:
    """Convert overrides to a list of `key=value`. `@file` is replaced with the lines of the file.

    >>> assignments({"training.max_updates": 100, "input.cutoffs": [2000, 8000]})
    ['training.max_updates=100', 'input.cutoffs=2000,8000']
    """
    from zipflm.field_help import as_override

    if isinstance(overrides, str):
        raise ValueError(f"overrides={overrides}: must be a list or a dict, not a string")
    if isinstance(overrides, Mapping):
        return [f"{key}={as_override(_plain(value))}" for key, value in overrides.items()]
    result: list[str] = []
    for text in overrides:
        result += _read_overrides(Path(text[1:])) if text.startswith("@") else [text]
    return result


def _read_overrides(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text; name a file of key=value lines") from None
    # A comment starts with " #", or with # at the start of a line.
    lines = (f" {line}".partition(" #")[0].strip() for line in text.splitlines())
    return ["=".join(part.strip() for part in line.split("=", 1)) for line in lines if line]


def _plain(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value  # arrays and tensors
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _sources(given: Sources) -> list[Source]:
    if given is None:
        return []
    return [given] if isinstance(given, str | PathLike) else list(given)


def _open(data: DataFolder | Source) -> DataFolder:
    from zipflm.data.folder import DataFolder

    return data if isinstance(data, DataFolder) else DataFolder.open(data)


def _path(data: DataFolder | Source) -> Path:
    return Path(data if isinstance(data, str | PathLike) else data.path)


def _load(run: LoadedRun | RunFolder | Source, checkpoint: Choice | str | None) -> LoadedRun:
    from zipflm.runs.load import LoadedRun, load_run

    return run if isinstance(run, LoadedRun) else load_run(run, _choice(checkpoint))


def _choice(checkpoint: Choice | str | None) -> Choice | None:
    from zipflm.runs.folder import parse_choice

    return parse_choice(checkpoint)


def _is_bundled(name: Source) -> bool:
    from zipflm.runs.folder import MODELS

    return not Path(name).exists() and (MODELS / name).is_dir()


def _vocabulary_files(folder: Path) -> tuple[Path, Path | None]:
    """Return the vocabulary and the BPE codes, if any, of a data folder, run or checkpoint."""
    from zipflm.data.folder import CODES_FILE, METADATA_FILE, VOCABULARY_FILE

    if not (folder / METADATA_FILE).is_file():
        from zipflm.runs.folder import locate

        folder = locate(folder, None)[1].path
    codes = folder / CODES_FILE
    return folder / VOCABULARY_FILE, codes if codes.is_file() else None


def _scheduler(engine: str, scheduler: str | None) -> str | None:
    if engine not in ("processes", "dask"):
        raise ValueError(f"engine={engine}: choose from processes, dask")
    if engine == "processes" and scheduler is not None:
        raise ValueError(f"scheduler={scheduler}: needs engine=dask")
    return None if engine == "processes" else scheduler or "local"
