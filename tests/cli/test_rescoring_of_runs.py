"""`zipflm rescore` on real runs gives the scores of `zipflm.load(...).score`."""

import sys

import pytest
from small_data import sentences
from training_runs import config_of

import zipflm
import zipflm.cli
from zipflm.training.trainer import train

SHORT = ["training.max_updates=3", "training.dtype=float32", "training.compile=false"]


@pytest.fixture(scope="module", params=["words", "subwords"])
def trained(request, word_data, bpe_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    data, preset = {
        "words": (word_data, "tiny/ADP-T"),
        "subwords": (bpe_data, "tiny/BPE-T"),
    }[request.param]
    train(config_of(data, *SHORT, preset=preset), data, out, device="cpu")
    return out


def hypotheses():
    """Utterances with shared prefixes, without any, and longer than the block."""
    for number, sentence in enumerate(sentences(seed=3, number=6)):
        words = sentence.split()
        others = [words[:-1], [*words, "bila"], [*words[:-1], "unseen"], ["boro", *words], []]
        yield f"u{number}", [" ".join(each) for each in (words, *others)]
    yield "long", [" ".join(["ba", "de"] * 15), " ".join(["ba", "de"] * 15 + ["ba"]), "ba de"]


def test_rescore_matches_score(trained, tmp_path, monkeypatch, capsys):
    rows = [f"{key}\t{text}\t0" for key, texts in hypotheses() for text in texts]
    (tmp_path / "list.tsv").write_text("\n".join(["id\ttext\tac", *rows]) + "\n")
    arguments = ["rescore", str(trained), str(tmp_path / "list.tsv"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["zipflm", *arguments])
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    said = capsys.readouterr()
    assert not exit.value.code, said.err
    found = [line.split("\t") for line in said.out.splitlines()[1:]]
    assert len(found) == len(rows)
    lm = zipflm.load(trained, device="cpu")
    # An empty hypothesis is just the line end.
    texts = [text or "\n" for _, text, *_ in found]
    expected = [scored.logprob for scored in lm.score(texts)]
    assert [float(row[3]) for row in found] == pytest.approx(expected, abs=1e-4, rel=1e-5)
    for (key, *_, total), (next_key, *_, next_total) in zip(found, found[1:], strict=False):
        assert key != next_key or float(total) >= float(next_total)


def test_unknown_run_exits_with_2_and_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "list.tsv").write_text("id\ttext\nu\ta\n")
    arguments = ["rescore", str(tmp_path / "absent"), str(tmp_path / "list.tsv")]
    monkeypatch.setattr(sys, "argv", ["zipflm", *arguments])
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    said = capsys.readouterr().err
    assert exit.value.code == 2 and "absent: no such folder" in said
    assert len(said.splitlines()) == 1
