"""Redrawing the report of a study without its weights."""

import json
import shutil

import pytest
from studies.study_runs import SENTENCES, SHORT, FakeTrainer, make_data, request_for, run_study

from zipflm.cli import app
from zipflm.studies.compare import compare
from zipflm.studies.redraw import is_study, redraw


@pytest.fixture
def without_weights(whole_study, tmp_path):
    """A copy of a study without checkpoints and reports."""
    ignored = shutil.ignore_patterns("checkpoints", "report.*", "*.csv", "figures")
    return shutil.copytree(whole_study.out, tmp_path / "sent", ignore=ignored)


def test_redraw_needs_no_weights(whole_study, without_weights, data, tmp_path):
    assert is_study(without_weights) and not is_study(whole_study.run_of("ADP-T"))
    redraw([without_weights], data, tmp_path / "drawn")
    before = json.loads((whole_study.out / "table.json").read_text())
    after = json.loads((tmp_path / "drawn" / "table.json").read_text())
    for name in ("title", "dataset", "protocol", "differences", "loss_by_word_frequency", "tried"):
        assert after[name] == before[name]
    for ours, theirs in zip(after["rows"], before["rows"], strict=True):
        assert ours["perplexity_test"] == theirs["perplexity_test"]
        assert ours["curve"] == theirs["curve"]
    assert (tmp_path / "drawn" / "report.html").is_file()


@pytest.fixture(scope="module")
def study_of(data, tmp_path_factory):
    """Trains a study of SM and ADP-T with the given seed, unless this was done before."""
    trained = {}

    def study(seed, *overrides, **changes):
        key = (seed, *overrides, *sorted(changes.items()))
        if key not in trained:
            overrides = (*SHORT, f"training.seed={seed}", *overrides)
            changes = {"factorizations": ("SM", "ADP-T"), **changes}
            trained[key] = tmp_path_factory.mktemp("studies") / f"study-{len(trained)}"
            compare(request_for(data, trained[key], overrides=overrides, **changes))
        return trained[key]

    return study


def test_combines_the_seeds_of_studies(study_of, data, tmp_path):
    both = study_of(1, seeds=2)
    redraw([study_of(1), study_of(2)], data, tmp_path / "combined")
    combined, together = (
        json.loads((out / "table.json").read_text()) for out in (tmp_path / "combined", both)
    )
    assert combined["protocol"]["seeds"] == together["protocol"]["seeds"] == "1, 2"
    assert combined["protocol"]["overrides"] == together["protocol"]["overrides"]
    assert combined["differences"] == together["differences"]
    for ours, theirs in zip(combined["rows"], together["rows"], strict=True):
        assert ours["perplexity_test"] == theirs["perplexity_test"]


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        ((), {"seeds": 2, "seed": 1}, "SM/seed-1: same model and seed as"),
        (("training.clip_norm=3",), {}, "SM/seed-2: training.clip_norm=3.0, but .* in .*seed-1"),
        (("training.max_updates=4",), {}, "held equal: updates .4 updates.* but updates .3"),
        ((), {"equal": "text"}, "held equal: text .*, but updates"),
        ((), {"factorizations": ("ADP-T",)}, "SM: no study has it with seed 2"),
        ((), {"memory": ("cache:5",)}, "SM . cache:5: no study has it with seed 1"),
    ],
)
def test_combines_only_seeds(overrides, changes, message, study_of, data, tmp_path):
    other = study_of(changes.pop("seed", 2), *overrides, **changes)
    with pytest.raises(ValueError, match=message):
        redraw([study_of(1), other], data, tmp_path / "combined")
    assert not (tmp_path / "combined" / "report.html").exists()


def test_combines_seeds_with_equal_seconds(study_of, data, tmp_path):
    """The number of updates depends on the speed, and the schedule on the number of updates."""
    cosine = "training.schedule=CosineCycles", "training.schedule.warmup_updates=2"
    studies = [study_of(seed, *cosine, equal="seconds") for seed in (1, 2)]
    for config in (studies[1] / "members").rglob("config.json"):
        settings = json.loads(config.read_text())
        settings["training"]["max_updates"] += 1
        settings["training"]["schedule"]["warmup_updates"] += 1
        config.write_text(json.dumps(settings))
    rows = redraw(studies, data, tmp_path / "combined").rows
    assert [len(row.scored) for row in rows] == [2, 2]
    assert all(row.curve[-1].valid_loss is not None for row in rows)


def test_tuning_results_name_their_seed(study_of, data, tmp_path):
    studies = [study_of(seed, grid=("decoder.dropout=0.1",)) for seed in (1, 2)]
    tried = redraw(studies, data, tmp_path / "combined").tried
    assert [entry.setting for entry in tried[::2]] == [
        "dropout=0.1 (seed 1)",
        "dropout=0.1 (seed 2)",
    ]


def test_a_failed_seed_is_replaced(study_of, data, tmp_path):
    failed = shutil.copytree(study_of(1, seeds=2), tmp_path / "failed")
    table = json.loads((failed / "table.json").read_text())
    table["rows"][0]["members"][0]["problem"] = "the loss is not finite"
    (failed / "table.json").write_text(json.dumps(table))
    only_sm = study_of(1, factorizations=("SM",))
    study = redraw([failed, only_sm], data, tmp_path / "combined")
    assert not study.missing and [len(row.scored) for row in study.rows] == [2, 2]


def test_redraw_needs_the_same_training_text(without_weights, data, tmp_path):
    train = [*SENTENCES * 19, *SENTENCES[::-1]]  # the same words and counts
    other = make_data(tmp_path / "other", train=train)
    with pytest.raises(ValueError, match="trained on another text .*other/data"):
        redraw([without_weights], other, tmp_path / "drawn")


def test_report_command_redraws_a_study(without_weights, data, tmp_path, capsys):
    arguments = [str(without_weights), "--data", str(data), "--out", str(tmp_path / "drawn")]
    app(["report", *arguments], standalone_mode=False)
    assert "report.html" in capsys.readouterr().out
    app(["report", *arguments, "--json"], standalone_mode=False)
    table = json.loads((tmp_path / "drawn" / "table.json").read_text())
    assert json.loads(capsys.readouterr().out) == table
    with pytest.raises(ValueError, match="redrawn from its saved scores"):
        app(["report", *arguments, "--block", "32"], standalone_mode=False)
    with pytest.raises(ValueError, match="typo: not a study like"):
        app(["report", str(tmp_path / "typo"), *arguments], standalone_mode=False)


def test_redraws_an_interrupted_study(data, tmp_path, capsys):
    """Some of its members have no folder yet."""
    out = tmp_path / "study"
    trainer = FakeTrainer(stops_at="SM")
    assert run_study(data, out, trainer, factorizations=("SM", "ADP-T")).stopped
    drawn = tmp_path / "drawn"
    arguments = ["report", str(out), "--data", str(data), "--out", str(drawn)]
    assert not app(arguments, standalone_mode=False)
    assert "ADP-T: not trained" in capsys.readouterr().err
    assert (drawn / "report.md").read_text().startswith("# Unfinished: 0 of 2 models done")


def test_redraw_errors_name_the_damaged_file(without_weights, data, tmp_path):
    member = without_weights / "members" / "ADP-T" / "seed-1"
    kept = (member / "scores" / "test.npz").read_bytes()
    (member / "scores" / "test.npz").write_bytes(kept[:100])
    with pytest.raises(ValueError, match="test.npz: cannot read these scores"):
        redraw([without_weights], data, tmp_path / "a")
    shutil.rmtree(member)
    with pytest.raises(ValueError, match="seed-1: this run of the study is missing"):
        redraw([without_weights], data, tmp_path / "b")
    path = without_weights / "table.json"
    table = json.loads(path.read_text())
    for damaged in (
        {"rows": [{"model": "SM"}]},
        table | {"rows": [{"model": "SM", "members": [{}]}]},
        table | {"protocol": ["a"]},
        table | {"protocol": {"held equal": 5}},
        table | {"title": 5},
    ):
        path.write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match="table.json: damaged or written by another version"):
            redraw([without_weights], data, tmp_path / "c")
    path.write_text("[]")
    with pytest.raises(ValueError, match="table.json: damaged"):
        redraw([without_weights], data, tmp_path / "c")
