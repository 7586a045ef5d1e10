"""Any override gives a valid config, or a one-line error that names the key."""

import time
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from fuzz.cases import case, tried

from zipflm.config import Config
from zipflm.messages import quoted, unquoted
from zipflm.presets import DATASETS, FACTORIZATIONS
from zipflm.presets.recipes import RECIPES, resolve
from zipflm.settings import as_json, from_dict, load_object

MAX_SECONDS = 1.0


def all_fields(cls, where=""):
    """Yield the dotted name and type of every field, including all variants."""
    for name, hint in get_type_hints(cls).items():
        options = get_args(hint) or (hint,)
        yield where + name, hint
        for option in options:
            if is_dataclass(option):
                yield from all_fields(option, f"{where}{name}.")


def own_fields(config, where=""):
    """Yield the same for the variants in a config."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        found = getattr(config, field.name)
        yield where + field.name, hints[field.name]
        if is_dataclass(found):
            yield from own_fields(found, f"{where}{field.name}.")


FIELDS = sorted(dict(all_fields(Config)).items())
KEYS = [key for key, _ in FIELDS]

WHOLE = ["0", "1", "2", "3", "4", "8", "16", "64", "-1", "007", "1_000", "+4", "1e3", "8.0"]
HUGE = [str(2**31), str(2**63), "1" + "0" * 18, "9" * 30]
REAL = ["0.0", "0.1", "0.5", "0.99", "1.0", "1.5", "-0.5", "1e-7", "-0.0", "5e-324", "1e-400"]
LARGE = ["1e9", "1e200", "1e308", "1e309", "-1e309", "inf", "-inf", "nan", "Infinity", "1e1000000"]
ODD = ["", " ", "\t", "none", "None", "null", "true", "FALSE", "yes", "\u0663", "\uff11", "1\u00b2"]
ODD += ["0x10", "1j", "1,2", "1,,2", "[1,2]", "((1:2),(3:4))", "[" * 3_000, "1:2:3", ":", ",", "="]
ODD += ["a\nb", "\x1b[2J", "\0", "\ud800", "x" * 100_000, "\u202e", "8_", "_8", " 8 ", "..", "'"]
ODD += ["20,60", "0.3:128,0.8:256", "0.5:64", "1:4,2:8", "99:1", "1" + ",1" * 5_000]
ODD += [",".join(map(str, range(1, n))) for n in (9, 400, 5_000)]
VARIANTS = sorted({o.__name__ for _, h in FIELDS for o in get_args(h) if is_dataclass(o)})
WORDS = {*VARIANTS, *(key.rpartition(".")[2] for key in KEYS)}


def value(rng, hint):
    """Return a valid or invalid text for a field."""
    if rng.random() < 0.2:
        return rng.choice([*WHOLE, *HUGE, *REAL, *LARGE, *ODD, *VARIANTS])
    if hint is int:
        return rng.choice([*WHOLE, *WHOLE, *HUGE, str(rng.randrange(2 ** rng.randrange(40)))])
    if hint is float:
        return rng.choice([*REAL, *REAL, *LARGE, *WHOLE, repr(rng.expovariate(0.1))])
    if hint is bool:
        return rng.choice(["true", "false", "True"])
    if get_origin(hint) is tuple:
        return separated(rng, get_args(hint))
    if get_origin(hint) is Literal:
        return rng.choice(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return rng.choice([member.value for member in hint])
    kinds = [option for option in get_args(hint) if is_dataclass(option)]
    return rng.choice(kinds).__name__ if kinds else rng.choice([*ODD, *WHOLE])


def separated(rng, options):
    if options[-1] is not Ellipsis:
        return ":".join(value(rng, option) for option in options)
    items = [value(rng, options[0]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 40]))]
    if options[0] is int and rng.random() < 0.7:  # like cutoffs
        items = [str(n) for n in sorted(rng.sample(range(1, 5_000), len(items)))]
    return rng.choice(["{}", "({})", "[{}]"]).format(",".join(items))


@cache
def fields_of(preset, recipe):
    return sorted(dict(own_fields(resolve(preset, recipe, [], 300_000))).items())


def key(rng, preset, recipe):
    """Return name and type of a field: of the config, of another variant, or misspelled."""
    name, hint = rng.choice(fields_of(preset, recipe))
    match rng.randrange(20):
        case 0 | 1:
            return rng.choice(FIELDS)
        case 2:
            return misspelled(rng, name), hint
    return name, hint


def misspelled(rng, name):
    place = rng.randrange(len(name) + 1)
    return rng.choice(
        [
            name[:place] + name[place + 1 :],
            name[:place] + rng.choice(["x", ".", " ", "\n", "\0", "\u00e9"]) + name[place:],
            f"{name}.{rng.choice(KEYS)}",
            rng.choice([".", "..", "kind", "__class__", "a" * 9_999, "a." * 9_999, name.upper()]),
        ]
    )


def request(rng):
    """Return arguments for `resolve`."""
    preset = f"{rng.choice(list(DATASETS))}/{rng.choice(FACTORIZATIONS)}"
    recipe = rng.choice(list(RECIPES))
    pairs = [key(rng, preset, recipe) for _ in range(rng.choice([1, 1, 1, 2, 3, 5]))]
    assignments = [f"{name}={value(rng, hint)}" for name, hint in pairs]
    if rng.random() < 0.1:
        assignments.append(rng.choice([*assignments, *(name for name, _ in pairs), "", "=", "=4"]))
    vocab_size = rng.choice([5, 8, 33, 1_000, 300_000, 300_000, 800_000, 800_000, 2**31 - 1])
    return preset, recipe, assignments, vocab_size


def attempt(rng):
    preset, recipe, assignments, vocab_size = request(rng)
    shown = f"{preset} {recipe} {vocab_size} {str(assignments)[:1_000]}"
    start = time.process_time()
    try:
        config = resolve(preset, recipe, assignments, vocab_size)
        outcome, problem = "resolved", problem_in(config)
    except ValueError as error:
        outcome, problem = "refused", problem_in_message(str(error), assignments)
    seconds = time.process_time() - start
    assert not problem, f"{shown}: {problem}"
    assert seconds < MAX_SECONDS, f"{shown}: {seconds} seconds"
    return outcome


def problem_in_message(message, assignments):
    if not message.isprintable():
        return f"not printable: {message[:1_000]!r}"
    # Cutoffs of the preset may not fit a small vocabulary, and its tying not other variants.
    own = ["input.cutoffs=", "tie="]
    if not any(is_named(message, assignment) for assignment in assignments + own):
        return f"key is not named: {message}"
    return None


def is_named(message, assignment):
    """Return whether a message names the key, its last part, or the variant."""
    name, _, text = assignment.partition("=")
    parts = name.split(".")
    tops = [".".join(parts[:depth]) for depth in range(1, 5)]
    ways = [f"unknown key {unquoted(top)}: " for top in tops]
    ways += [unquoted(name).removesuffix("..."), quoted(assignment)]
    ways += [word for word in (parts[-1], text) if word in WORDS]
    return any(way in message for way in ways)


def problem_in(config):
    if from_dict(Config, load_object(as_json(config))) != config:
        return f"changed by JSON: {config}"
    sizes = [*config.params_by_part().values(), config.num_params()]
    if not all(type(size) is int and size >= 0 for size in sizes):
        return f"{config} has the sizes {sizes}"
    config.describe(config.batches.unit)
    return None


@pytest.mark.timeout(0)  # --fuzz-seconds is the limit
def test_fuzz_overrides(fuzz_seed, fuzz_seconds):
    outcomes = tried(attempt, fuzz_seed, fuzz_seconds)
    assert outcomes["resolved"] > 10 and outcomes["refused"] > 10


def test_cases_are_reproducible():
    once, again = ([request(case(1, number)) for number in range(50)] for _ in range(2))
    assert once == again and once[0] != once[1]
