"""`zipflm score`: rows agree with `lm.score` and `evaluate`, from files and pipes."""

import gzip
import json
import math
import shlex
import subprocess
import sys
from contextlib import suppress

import pytest
import training_runs
from loaded_models import loaded
from small_data import sentences
from typer.testing import CliRunner

import zipflm
import zipflm.cli
from zipflm.data.encoding import TextEncoder
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.language.score_command import ScoreOptions, score_files

LINES = ["ba de fila", "", "soro qqqq", "ba"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def rows_of(lm, *names, **options):
    chosen = ScoreOptions(**options)
    header, *rows = [row for group in score_files(lm, [*map(str, names)], chosen) for row in group]
    return header, rows


def test_rows_per_word(lm, text):
    header, rows = rows_of(lm, text)
    *columns, protocol = header.split("\t")
    assert columns == ["line", "position", "word", "logprob", "band", "count", "unknown"]
    assert "# run=made-up checkpoint=update-00000001 unit=" in protocol
    expected = [
        (str(number), str(place), word)
        for number, line in enumerate(lm.score([line or "\n" for line in LINES]), start=1)
        for place, word in enumerate(line.words, start=1)
    ]
    assert len(rows) == len(expected)
    for row, (number, place, word) in zip(rows, expected, strict=True):
        fields = row.split("\t")
        assert fields[:3] == [number, place, word.word]
        assert float(fields[3]) == pytest.approx(word.logprob, abs=2e-5)
        assert fields[4:] == [str(word.band), str(word.count), str(int(word.is_unknown))]


def test_json_lines_match_tsv(adp, text):
    header, rows = rows_of(adp, text, json=True)
    columns = json.loads(header)["columns"]
    assert json.loads(header)["protocol"]["lines"] == "independent"
    _, plain = rows_of(adp, text)
    for row, fields in zip(map(json.loads, rows), plain, strict=True):
        assert list(row) == columns
        assert f"{row['logprob']:.6f}" == fields.split("\t")[3]
        assert row["unknown"] is (fields.split("\t")[6] == "1")


def test_log10(adp, text):
    nats, other = (rows_of(adp, text, log10=log10, per="line") for log10 in (False, True))
    assert "\tlog10\t" in other[0]
    for rows in zip(nats[1], other[1], strict=True):
        one, two = (row.split("\t") for row in rows)
        assert float(two[3]) * math.log(10) == pytest.approx(float(one[3]), abs=1e-5)
        assert one[4] == two[4]  # perplexity has no unit


def test_bits(adp, text):
    nats, bits = (rows_of(adp, text, bits=in_bits) for in_bits in (False, True))
    assert "\tbits\t" in bits[0]
    for one, other in zip(nats[1], bits[1], strict=True):
        expected = -float(one.split("\t")[3]) / math.log(2)
        assert float(other.split("\t")[3]) == pytest.approx(expected, abs=1e-5)


def test_can_leave_out_line_ends(adp, text):
    _, rows = rows_of(adp, text, bits=True, ends=False)
    assert [row.split("\t")[:3] for row in rows] == [
        ["1", "1", "ba"], ["1", "2", "de"], ["1", "3", "fila"],
        ["3", "1", "soro"], ["3", "2", "qqqq"], ["4", "1", "ba"],
    ]  # fmt: skip
    assert float(rows[0].split("\t")[3]) == pytest.approx(adp.score("ba").words[0].surprisal, 1e-4)


@pytest.mark.parametrize("ends", [True, False])
def test_sums_per_line_document_and_total(adp, text, tmp_path, ends):
    other = tmp_path / "other.txt"
    other.write_text("fila ba")
    _, words = rows_of(adp, text, other, ends=ends)
    sums = {}
    for per in ("line", "document", "total"):
        header, rows = rows_of(adp, text, other, ends=ends, per=per)
        places = {name: place for place, name in enumerate(header.split("\t"))}
        cells = [row.split("\t") for row in rows]
        sums[per] = (
            sum(float(row[places["logprob"]]) for row in cells),
            sum(int(row[places["words"]]) for row in cells),
            sum(int(row[places["unknown"]]) for row in cells),
        )
    total = sum(float(row.split("\t")[3]) for row in words)
    assert sums["total"][1] == len(words)
    for logprob, number, unknown in sums.values():
        assert (number, unknown) == (len(words), 1)
        assert logprob == pytest.approx(total, abs=1e-4)
    perplexity = float(rows[0].split("\t")[-1])
    assert perplexity == pytest.approx(math.exp(-total / len(words)), rel=1e-4)


def test_empty_lines_have_no_perplexity(adp, text):
    _, rows = rows_of(adp, text, per="line", ends=False)
    assert rows[1] == "2\t0\t0\t0.000000\t"
    _, rows = rows_of(adp, text, per="line", ends=False, json=True)
    assert json.loads(rows[1])["perplexity"] is None


def test_several_files(adp, text, tmp_path):
    packed = tmp_path / "more.txt.gz"
    packed.write_bytes(gzip.compress(b"ba\r\nde"))
    header, rows = rows_of(adp, text, packed)
    assert header.split("\t")[-2] == "file"
    assert [row.split("\t")[0] for row in rows[-4:]] == ["1", "1", "2", "2"]
    assert {row.split("\t")[-1] for row in rows} == {str(text), str(packed)}


def test_running_lines_match_evaluate(run, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("\n".join(sentences(5, 50)) + "\n")
    lm = zipflm.load(run, device="cpu")
    _, (row,) = rows_of(lm, path, lines="running", per="total")
    found = evaluate(lm.run, text=path, options=ScoringOptions(device="cpu"))
    lines, words, _, logprob, perplexity = row.split("\t")
    assert (int(lines), int(words)) == (50, found.scores.protocol.words)
    assert float(logprob) == pytest.approx(-found.scores.nll_sum, rel=1e-6)
    assert float(perplexity) == pytest.approx(found.scores.perplexity, rel=1e-6)


def test_running_lines_must_not_be_far_longer_than_a_block(run, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ba de " * 10_000)
    with pytest.raises(ValueError, match="20,001 tokens.*; use --lines independent"):
        rows_of(zipflm.load(run, device="cpu"), path, lines="running")


def test_top_lists_alternatives(lm, text):
    header, rows = rows_of(lm, text, top=3)
    assert header.split("\t")[-2] == "top"
    first = [each.rpartition("=")[::2] for each in rows[1].split("\t")[-1].split(" ")]
    expected = lm.next_words("ba", 3)
    assert [word for word, _ in first] == [word.word for word in expected]
    values = [word.logprob for word in expected]
    assert [float(value) for _, value in first] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize(("label", "k"), [("ADP-T", 80), ("BPE", 30)])
def test_top_agrees_with_the_score_beyond_the_block(models, tmp_path, label, k):
    path = tmp_path / "long.txt"
    path.write_text(" ".join(sentences(3, 9)) + "\n")
    _, rows = rows_of(models[label], path, top=k, prefix="ba de fila")
    compared = 0
    for _, _, word, logprob, _, _, _, top in (row.split("\t") for row in rows):
        likely = dict(each.rpartition("=")[::2] for each in top.split(" "))
        if word in likely:
            assert float(likely[word]) == pytest.approx(float(logprob), abs=1e-4)
            compared += 1
    assert len(rows) > 40 and compared > (40 if k == 80 else 10)


def test_prefix(adp, text):
    header, rows = rows_of(adp, text, prefix="ba de")
    assert header.endswith("prefix=2")
    expected = adp.score("ba", prefix="ba de")
    assert float(rows[-2].split("\t")[3]) == pytest.approx(expected.words[0].logprob, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"per": "page"}, "per='page': choose from word"),
        ({"lines": "some"}, "lines='some': choose from"),
        ({"errors": "ignore"}, "errors='ignore': choose from"),
        ({"top": -1}, "--top -1"),
        ({"top": 2, "per": "line"}, "--top"),
        ({"top": 2, "lines": "running"}, "--top"),
        ({"bits": True, "log10": True}, "--log10"),
        ({"top": 1000}, "top=1000: must be an integer from 1 to 80"),
    ],
)
def test_rejects_conflicting_options(adp, text, options, reason):
    with pytest.raises(ValueError, match=reason):
        rows_of(adp, text, **options)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b"ba\nb\0a\n", "line 2: a NUL"), (b"ba\n\xff\n", "line 2: not UTF-8")],
)
def test_rejects_invalid_text_with_its_line(adp, tmp_path, content, reason):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"bad.txt: {reason}"):
        rows_of(adp, path)


def test_can_replace_invalid_bytes(adp, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"ba\n\xff b\0a\n")
    _, rows = rows_of(adp, path, errors="replace")
    assert [row.split("\t")[2] for row in rows[2:]] == ["\ufffd", "b\ufffda", "</s>"]


def test_reads_text_in_pieces_without_codes(bpe_data):
    lm = loaded(bpe_data, "BPE")
    pieces = " ".join(lm.vocabulary.words[i] for i in lm.reader.line("ba fila").ids[:-1])
    lm.reader._is_pre_split, lm.reader.encoder = True, TextEncoder(lm.vocabulary)
    words = lm.score(pieces).words
    assert [word.word for word in words] == ["ba", "fila", "</s>"]


def test_words_with_an_unknown_piece_are_unknown(bpe_data, tmp_path):
    lm = loaded(bpe_data, "BPE")
    lm.reader._is_pre_split, lm.reader.encoder.codes = True, None
    begin = next(word for word in lm.vocabulary.words if word.endswith("@@"))
    path = tmp_path / "pieces.txt"
    path.write_text(f"{begin} zz\nzz@@ ba\nba\n")
    _, rows = rows_of(lm, path, per="word", ends=False)
    fields = [row.split("\t") for row in rows]
    begun = begin.removesuffix("@@")
    assert [(f[2], f[6]) for f in fields] == [
        (f"{begun}zz", "1"), ("zz@@", "1"), ("ba", "0"), ("ba", "0"),
    ]  # fmt: skip
    _, (row,) = rows_of(lm, path, per="total")
    assert row.split("\t")[2] == "2"


# --- Command line ---


def invoke(*arguments, **options):
    return CliRunner().invoke(zipflm.cli.app, [*map(str, arguments)], **options)


def test_reads_stdin_by_default(run):
    done = invoke("score", run, "--device", "cpu", "--per", "line", input="ba de\nfila\n")
    assert done.exit_code == 0
    assert [row.split("\t")[:2] for row in done.stdout.splitlines()[1:]] == [["1", "3"], ["2", "2"]]


@pytest.fixture
def process(run):
    """Run the command in a child process with pipes."""
    line = [sys.executable, "-m", "zipflm", "score", str(run), "--device", "cpu"]
    started = []

    def start(*more):
        pipe = subprocess.PIPE
        child = subprocess.Popen([*line, *more], stdin=pipe, stdout=pipe, stderr=pipe)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            with suppress(BrokenPipeError):
                stream.close()


@pytest.mark.slow
def test_answers_each_line_of_a_pipe_at_once(process):
    child = process("--per", "line")
    assert child.stdout.readline().startswith(b"line\t")
    for number in (1, 2):
        child.stdin.write(b"ba de\n")
        child.stdin.flush()
        assert child.stdout.readline().startswith(f"{number}\t3\t".encode())
    child.stdin.close()
    assert child.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "status"), [("<&-", 2), (">&-", 0), ("2>&-", 0)])
def test_closed_streams(run, text, closed, status):
    file = "-" if closed == "<&-" else text
    arguments = shlex.join(training_runs.command("score", run, file, "--device", "cpu"))
    found = training_runs.call(["sh", "-c", f"{arguments} {closed}"])
    assert found.returncode == status
    assert found.stderr == ("zipflm: standard input: empty\n" if status else "")
    assert ("</s>" in found.stdout) == (closed == "2>&-")


def test_closed_pipe_is_silent(process):
    child = process()
    child.stdout.readline()
    child.stdout.close()
    for _ in range(50):
        try:
            child.stdin.write(b"ba de fila\n" * 200)
            child.stdin.flush()
        except BrokenPipeError:
            break
    assert child.wait(60) == 141
    assert child.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["score", "nowhere", "-"], "nowhere"),
        (["score", "RUN", "missing.txt"], "missing.txt: no such file"),
        (["score", "RUN", "-", "--block", "0"], "--block"),
        (["generate", "RUN", "--temperature", "-1"], "--temperature -1.0"),
        (["generate", "RUN", "--checkpoint", "77"], "--checkpoint 77"),
        (["generate", "RUN", "--num", "0"], "--num 0"),
        (["generate", "RUN", "the cat"], "unexpected extra argument"),
        (["score", "RUN", __file__, "--top", "1000"], "--top 1000"),
        (["score", "RUN", "-", "--dtype", "half"], "--dtype half: choose"),
        (["score", __file__, "RUN"], f"{__file__}: a file, not a run"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(run, monkeypatch, capsys, arguments, reason):
    filled = [str(run) if each == "RUN" else each for each in arguments]
    monkeypatch.setattr(sys, "argv", ["zipflm", *filled])
    with pytest.raises(SystemExit) as ended:
        zipflm.cli.main()
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert reason in output and output.count("\n") == 1


def test_generates_from_a_prompt(run):
    options = ["--prompt", "ba de", "--seed", "3", "--max-words", "5", "--lines", "0"]
    one = invoke("generate", run, "--device", "cpu", *options)
    assert one.exit_code == 0 and one.stdout.startswith("ba de ") and one.stdout.endswith("\n")
    lines = invoke("generate", run, "--device", "cpu", *options, "--num", "2", "--json")
    texts = [json.loads(line) for line in lines.stdout.splitlines()]
    assert len(texts) == 2 and len(texts[0]["words"]) >= 5
    assert texts[0]["logprob"] == pytest.approx(sum(w["logprob"] for w in texts[0]["words"]))


@pytest.mark.parametrize("num", ["1", "2"])
def test_generated_text_is_printed_exactly(run, num):
    prompt = "\u0645\u06cc\u200c\u062e \u3000 \x1b[2J " + 900 * "ba "
    options = ["--prompt", prompt, "--max-words", "2", "--num", num, "--device", "cpu"]
    assert invoke("generate", run, *options).stdout.count(prompt) == int(num)


def test_generate_warns_of_unknown_words_and_long_texts(run):
    done = invoke(
        "generate", run, "--device", "cpu", "--prompt", "zzz ba", "--max-words", "40",
        "--lines", "0", "--seed", "1",
    )  # fmt: skip
    assert done.exit_code == 0
    assert "read as <unk>: zzz" in done.stderr
    assert "longer than the block of 16 tokens" in done.stderr
