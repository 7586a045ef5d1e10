"""Plans of a study, and checks before training."""

from dataclasses import replace
from pathlib import Path

import pytest
from studies.study_runs import make_data, plans_for

from zipflm.data.prepare import Options, prepare
from zipflm.presets import DATASETS, FACTORIZATIONS, preset
from zipflm.studies.plan import CURVE_POINTS, Request, with_validations


def test_plans_all_factorizations_with_matching_data(data):
    plans = plans_for(data, Path("study"))
    assert tuple(plan.label for plan in plans) == FACTORIZATIONS
    assert {plan.label for plan in plans if plan.data.path.name == "bpe"} == {"BPE", "BPE-T"}
    assert plans[-1].run.path == Path("study/members/ADP-T/seed-1")


def test_seeds_start_at_the_seed_of_the_config(data):
    plans = plans_for(data, factorizations=("SM",), seeds=3, overrides=("training.seed=7",))
    assert [plan.seed for plan in plans] == [7, 8, 9]
    assert [plan.config.training.seed for plan in plans] == [7, 8, 9]
    assert len({plan.run.path for plan in plans}) == 3


def test_layer_overrides_apply_to_members_with_that_layer(data):
    overrides = ("input.cutoffs=3,5", "output.cutoffs=3,5", "output.tail_dropout=0.3")
    plans = plans_for(data, overrides=overrides)
    configs = {plan.label: plan.config for plan in plans}
    assert configs["SM"] == plans_for(data)[0].config
    for label in ("ASM", "CNN", "ADP", "ADP-T"):
        output = configs[label].output
        assert (output.cutoffs, output.tail_dropout) == ((3, 5), 0.3)
    for label in ("ADP", "ADP-T"):
        assert configs[label].input_bands.cutoffs == (3, 5)


def test_each_setting_is_a_row(data):
    plans = plans_for(data, bands=("4/8/20", "8/24"), tail_dropout=(0.0, 0.2))
    assert [plan.label for plan in plans] == [
        "ADP-T bands 4/8/20, tail dropout 0",
        "ADP-T bands 4/8/20, tail dropout 0.2",
        "ADP-T bands 8/24, tail dropout 0",
        "ADP-T bands 8/24, tail dropout 0.2",
    ]
    output = plans[1].config.output
    assert (output.cutoffs, output.tail_dropout) == ((4, 12), 0.2)
    assert plans[1].run.path.parent.name == "ADP-T-bands-4-8-20-tail-dropout-0.2"


def test_preset_names_a_dataset_or_one_model():
    given = {"data": Path("d"), "out": Path("s")}
    one = Request(preset="billion-word/SM/large", **given)
    assert (one.preset, one.factorizations) == ("billion-word/large", ("SM",))
    every = Request(preset="billion-word/large", **given)
    assert (every.preset, every.factorizations) == ("billion-word/large", FACTORIZATIONS)
    assert Request(preset="tiny", bands=("4/8",), **given).factorizations == ("ADP-T",)
    with pytest.raises(ValueError, match="factorizations=sm: choose from SM, SM-T"):
        Request(preset="tiny/sm", **given)
    with pytest.raises(ValueError, match="dataset='': choose from"):
        Request(preset="", **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factorizations": ("SMT",)}, "factorizations=SMT: choose from SM, SM-T"),
        ({"seeds": 0}, "seeds=0"),
        ({"bands": ("5k",), "factorizations": ("ADP",)}, "bands='5k'"),
        ({"bands": ("0/5",), "factorizations": ("ADP",)}, "bands='0/5'"),
        ({"bands": ("5k//5",), "factorizations": ("ADP",)}, "bands='5k//5'"),
        ({"preset": "wiki"}, "dataset='wiki'"),
        ({"preset": "tiny/SM", "factorizations": ("SM",)}, "preset=tiny/SM: give a dataset"),
        ({"overrides": ("decoder.layers=2",)}, "did you mean decoder.num_layers"),
        ({"overrides": ("input.cutofs=3,5",)}, "did you mean input.cutoffs"),
        (
            {"overrides": ("input.cutoffs=3,5",), "factorizations": ("SM", "ASM")},
            "unknown key input.cutoffs",
        ),
        ({"overrides": ("input.cutoffs=3,5",)}, "tiny/ADP-T: tie='projections'"),
        ({"overrides": ("tie=none",)}, "would turn SM-T into SM"),
        ({"overrides": ("tie=embeddings",)}, "would turn SM into SM-T"),
        ({"overrides": ("batches.unit=bpe",)}, "would turn SM into BPE"),
        ({"overrides": ("output=FullOutput",)}, "would turn ASM into"),
        ({"bands": ("4/8/20",), "factorizations": ("SM",)}, "bands: tiny/SM has no bands"),
        ({"bands": ("5k/9k",), "factorizations": ("ADP",)}, "the vocabulary has only"),
        ({"tail_dropout": (0.1,), "factorizations": ("SM",)}, "tail_dropout: tiny/SM has no"),
        ({"tail_dropout": (0.1, 0.10), "factorizations": ("ADP",)}, "give each value once"),
        ({"equal": "time"}, "equal=time: choose from updates, text, seconds"),
        ({"tail_dropout": (1.5,), "factorizations": ("ADP",)}, r"must be in \[0, 1\)"),
    ],
)
def test_rejects_invalid_requests(data, changes, message):
    with pytest.raises(ValueError, match=message):
        plans_for(data, **changes)


def test_missing_sub_word_data_error_suggests_remedies(tmp_path):
    data = make_data(tmp_path, twin=False)
    with pytest.raises(ValueError, match=r"--bpe 6 --out .*data/bpe\), or train only "
                       "SM, SM-T, ASM, CNN, ADP, ADP-T"):  # fmt: skip
        plans_for(data)


@pytest.mark.parametrize("change", ["fewer words", "other words", "other order"])
def test_rejects_sub_word_data_of_another_text(tmp_path, change):
    data = make_data(tmp_path, twin=False)
    texts = {split: [tmp_path / f"{split}.other"] for split in ("train", "valid", "test")}
    for split, (other,) in texts.items():
        same = (tmp_path / f"{split}.txt").read_text()
        changed = {
            "fewer words": same[4:],
            "other words": same.replace("cat", "dog"),
            "other order": "\n".join(reversed(same.splitlines())) + "\n",
        }
        other.write_text(changed[change])
    prepare(data / "bpe", texts, Options(bpe=5))
    with pytest.raises(ValueError, match="prepare both from the same text"):
        plans_for(data)


def test_epochs_give_all_members_the_same_updates(data):
    overrides = ("training.epochs=3",)
    plans = plans_for(data, overrides=overrides)
    (training,) = {plan.config.training for plan in plans}
    words = plans[0].data.split("train").words
    assert training.max_updates == -(-3 * words // training.tokens_per_update)


def test_rejects_early_stopping(data):
    overrides = ("training.patience=3",)
    with pytest.raises(ValueError, match=r"training\.patience"):
        plans_for(data, overrides=overrides)


def with_updates(config, updates, every=2000):
    training = replace(config.training, max_updates=updates, validate_every=every)
    return replace(config, training=training)


def test_validates_often_enough_for_a_curve():
    for updates in (3, 8, 2500):
        training = with_validations(with_updates(preset("tiny"), updates), ()).training
        assert updates // training.validate_every >= min(updates, CURVE_POINTS)
        assert training.validate_share == 0.1
    often, rarely = with_updates(preset("tiny"), 100, 5), with_updates(preset("tiny"), 100)
    assert with_validations(often, ()) == often
    assert with_validations(rarely, ["training.validate_every=2000"]) == rarely
    for dataset in set(DATASETS) - {"toy"}:
        training = preset(dataset).training
        assert training.max_updates // training.validate_every >= CURVE_POINTS


def test_plans_decoders(data):
    names = ("transformer", "gcnn", "lstm", "qrnn")
    overrides = ("decoder.num_heads=2", "decoder.window=1", "decoder.dropout=0.3")
    plans = plans_for(data, decoders=names, overrides=overrides)
    assert [plan.label for plan in plans] == [f"ADP-T {name}" for name in names]
    assert {plan.factorization for plan in plans} == {"ADP-T"}
    assert len({type(plan.config.decoder) for plan in plans}) == 4
    # Overrides apply to decoders that have the field.
    assert {plan.config.decoder.dropout for plan in plans} == {0.3}
    assert [getattr(plan.config.decoder, "window", None) for plan in plans] == [None, None, None, 1]
    with pytest.raises(ValueError, match="decoders=rnn: choose from transformer, gcnn"):
        plans_for(data, decoders=("rnn",))
    with pytest.raises(ValueError, match="unknown key decoder.num_head"):
        plans_for(data, decoders=names, overrides=("decoder.num_head=2",))


def test_bands_keep_the_dtype_of_a_started_study(data, tmp_path):
    """On another device, the default would be another dtype."""
    bands = {"preset": "wikitext-2", "bands": ("5/10/30", "10/10/20")}
    first = plans_for(data, tmp_path, **bands)[0]
    held = replace(first.config, training=replace(first.config.training, dtype="float32"))
    first.run.record_start(held, first.data, 0, "cpu")
    assert {p.config.training.dtype for p in plans_for(data, tmp_path, **bands)} == {"float32"}
