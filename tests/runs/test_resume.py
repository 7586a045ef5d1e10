import shutil

import pytest
from small_data import make_folder
from training_runs import config_of
from training_runs import run as train_run

from zipflm.config import Splitting
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import load_run
from zipflm.training.checks import check_run_folder

SHORT = "training.max_updates=2"
LONGER = "training.max_updates=3"


@pytest.fixture(scope="module")
def same_words(word_data, tmp_path_factory):
    """Another training text, prepared with the vocabulary of the first."""
    root = tmp_path_factory.mktemp("same")
    make_folder(root, "other", seed=7)
    texts = {split: [root / f"other.{split}.txt"] for split in ("train", "valid")}
    options = Options(vocabulary=word_data.path / "vocabulary.txt")
    return prepare(root / "words", texts, options)


def test_rejects_another_training_text(copy, word_data, same_words):
    config = config_of(word_data)
    check_run_folder(copy, config, word_data, resume=True)
    with pytest.raises(ValueError) as error:
        check_run_folder(copy, config, same_words, resume=True)
    for part in (word_data, same_words):
        assert part.split("train").sha256[:12] in str(error.value)
    assert "--other-text" in str(error.value)


def test_records_another_training_text(word_data, same_words, tmp_path):
    out = tmp_path / "run"
    train_run(word_data, out, SHORT)
    with pytest.raises(ValueError, match="--other-text"):
        train_run(same_words, out, LONGER, resume=True)
    train_run(same_words, out, LONGER, resume=True, other_text=True)
    versions = RunFolder(out).versions()
    assert versions.text == word_data.split("train").sha256
    assert [resumed.text for resumed in versions.resumed] == [same_words.split("train").sha256]
    # From now on this is the text of the run.
    train_run(same_words, out, "training.max_updates=4", resume=True)
    with pytest.raises(ValueError, match="was trained on the text"):
        train_run(word_data, out, "training.max_updates=5", resume=True)


def test_rejects_another_vocabulary(copy, word_data, other_data):
    with pytest.raises(ValueError, match="was trained with the vocabulary") as error:
        check_run_folder(copy, config_of(word_data), other_data, resume=True, other_text=True)
    for data in (word_data, other_data):
        assert data.vocabulary.hash[:12] in str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("decoder.num_layers=2", "decoder.num_layers=1, not the 2 requested"),
        ("output.tail_dropout=0.5", "output.tail_dropout=0.1, not the 0.5 requested"),
        ("training.optimizer=AdamW", "training.optimizer=Nesterov, not the AdamW requested"),
        ("name=mine", "name=tiny/ADP-T, not the mine requested"),
        ("training.seed=7", "training.seed=1, not the 7 requested"),
    ],
)
def test_rejects_another_model_or_optimizer(copy, word_data, override, message):
    with pytest.raises(ValueError, match=f"holds a run of tiny/ADP-T with {message}"):
        check_run_folder(copy, config_of(word_data, override), word_data, resume=True)


def test_length_batches_and_precision_can_change(copy, word_data):
    others = ["training.max_updates=99", "batches.tokens=128", "training.dtype=bfloat16"]
    check_run_folder(copy, config_of(word_data, *others), word_data, resume=True)


def test_does_not_overwrite_a_run_that_has_started(copy, word_data):
    config = config_of(word_data)
    with pytest.raises(
        ValueError, match="already holds a run of tiny/ADP-T.*update-00000006.*--res"
    ):
        check_run_folder(copy, config, word_data, resume=False)
    shutil.rmtree(copy.checkpoints_path)
    with pytest.raises(ValueError, match="already holds a run .*no checkpoint yet"):
        check_run_folder(copy, config, word_data, resume=False)
    copy.log_path.unlink()
    check_run_folder(copy, config, word_data, resume=False)


def test_accepts_a_moved_data_folder(copy, word_data, tmp_path):
    moved = DataFolder.open(shutil.copytree(word_data.path, tmp_path / "moved"))
    check_run_folder(copy, config_of(word_data), moved, resume=True)


def test_rejects_imported_models(imported_run, word_data):
    with pytest.raises(ValueError, match="an imported model cannot be resumed"):
        check_run_folder(RunFolder(imported_run), config_of(word_data), word_data, resume=True)


def test_rejects_checkpoints_without_a_config(copy, word_data):
    (copy.path / "config.json").unlink()
    with pytest.raises(ValueError, match="has checkpoints but no config.json"):
        check_run_folder(copy, config_of(word_data), word_data, resume=True)


def test_rejects_another_splitting(copy, word_data, tmp_path):
    texts = {"train": [tmp_path / "train.txt"]}
    texts["train"][0].write_text("ba ba\n")
    options = Options(vocabulary=word_data.vocabulary, splitting=Splitting("words", lowercase=True))
    other = prepare(tmp_path / "d", texts, options)
    with pytest.raises(ValueError, match="--words whitespace, but .*--words words --lowercase"):
        check_run_folder(copy, config_of(word_data), other, resume=True, other_text=True)


def test_runs_and_checkpoints_store_the_splitting(tmp_path):
    splitting = Splitting("words", lowercase=True)
    data = make_folder(tmp_path, "words", splitting=splitting)
    train_run(data, tmp_path / "run", SHORT)
    assert load_run(tmp_path / "run").splitting == splitting
    train_run(data, tmp_path / "run", LONGER, resume=True)
    assert RunFolder(tmp_path / "run").choose("newest").splitting() == splitting
    assert load_run(tmp_path / "run").splitting == splitting
