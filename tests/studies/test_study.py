"""Building a study from its members."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from studies import example_study as example

from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.studies.members import split_score
from zipflm.studies.study import split_text


def test_bins_average_to_the_total_loss():
    study = example.study()
    for bins in (study.word_bins, study.previous_bins):
        for label in example.LABELS:
            total = sum(b.tokens * (b.loss[label] or 0) for b in bins) / sum(b.tokens for b in bins)
            assert total == pytest.approx(example.total_loss(study, label))


def test_words_are_counted_in_the_training_text(tmp_path):
    """Not in the text of the dictionary."""
    for name, text in (("dict", "a 900\nb 2\nc 1\n"), ("train", "b c b\nd b\n"), ("valid", "a\n")):
        (tmp_path / name).write_text(text)
    texts = {split: [tmp_path / split] for split in ("train", "valid")}
    prepare(tmp_path / "data", texts, Options(vocabulary=tmp_path / "dict"))
    vocabulary = split_text(DataFolder.open(tmp_path / "data"), "valid").vocabulary
    counts = dict(zip(vocabulary.words, vocabulary.counts.tolist(), strict=True))
    assert [counts[word] for word in ("a", "b", "c", "<unk>", "</s>")] == [0, 3, 1, 0, 0]
    (tmp_path / "data" / "train.tokens").unlink()
    with pytest.raises(ValueError, match="train.tokens.*prepare the data again"):
        split_text(DataFolder.open(tmp_path / "data"), "valid")


def test_seeds_share_a_row():
    study = example.study(seeds=3)
    assert [row.label for row in study.rows] == list(example.LABELS)
    row = study.rows[0]
    values = [m.scores["test"].perplexity for m in row.members]
    summary = row.perplexity["test"]
    assert summary.mean == pytest.approx(np.exp(np.mean(np.log(values))))
    assert summary.deviation == pytest.approx(np.std(values, ddof=1))


def test_seed_without_result_is_ignored():
    lost = replace(example.member("SM", 2, problem="diverged"), compiled=False)
    members = [replace(example.member("SM", 1), compiled=True), lost]
    study = example.study_of(*members)
    assert not study.rows[0].ran_uncompiled and study.rows[0].problem == "seed 2: diverged"


def test_curve_has_the_updates_of_all_seeds():
    one, other = example.member("SM", 1), example.member("SM", 2)
    gap = replace(other.curve[3], loss=None)
    other = replace(other, curve=(*other.curve[:3], gap, *other.curve[5:]))
    study = example.study_of(one, other)
    points = {point.update: point for point in study.rows[0].curve}
    assert list(points) == [10, 20, 30, 40, 60, 70, 80, 90, 100]
    assert points[40].loss is None
    losses = [member.curve[0].loss for member in (one, other)]
    assert points[10].loss == pytest.approx(np.mean(losses))


def test_known_loss_leaves_out_unknown_words():
    ids, nll = np.array([5, 3, 6, 3]), np.array([1.0, 8.0, 2.0, 8.0])
    protocol = example.member("SM").scores["test"].protocol
    score = split_score(nll, ids, protocol)
    assert (score.loss, score.known_loss) == (4.75, 1.5)
    assert np.isnan(split_score(nll[1::2], ids[1::2], protocol).known_perplexity)


@pytest.mark.parametrize("nll", [[1e4, 1e4], [np.inf, 1.0]])
def test_rejects_infinite_perplexities(nll):
    protocol = example.member("SM").scores["test"].protocol
    with pytest.raises(ValueError, match="training diverged: .* an infinite perplexity"):
        split_score(np.array(nll), np.array([5, 6]), protocol)


def test_reversed_difference():
    study = example.study()
    for label, other in permutations(example.LABELS, 2):
        found, back = study.difference(label, other), study.difference(other, label)
        assert found.estimate == -back.estimate
        assert (found.low, found.high) == (-back.high, -back.low)
        assert not (study.is_better(label, other) and study.is_better(other, label))
    assert study.difference("ADP-T", "unknown") is None


def test_difference_of_mean_losses():
    study = example.study()
    found = study.difference("ADP-T", "SM")
    ours, theirs = (example.total_loss(study, label) for label in ("ADP-T", "SM"))
    assert found.estimate == pytest.approx(ours - theirs)


def test_differences_do_not_depend_on_the_order_of_the_models():
    members = [example.member(label, rank=i) for i, label in enumerate(("SM", "CNN", "ADP"))]
    studies = [example.study_of(*order) for order in (members, members[::-1])]
    first, second = (study.difference("SM", "ADP") for study in studies)
    assert first.low == pytest.approx(second.low)
    assert first.high == pytest.approx(second.high)
