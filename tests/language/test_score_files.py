import gzip
import io
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zipflm.language.score_table import ScoreFile, read_scores, write_scores

TSV = (
    "line\tposition\tword\tlogprob\tband\tcount\tunknown\t# run=runs/a lines=independent block=16\n"
    "1\t1\tthe\t-1.5\t0\t99\t0\n"
    "1\t2\tcat\t-2.25\t1\t7\t1\n"
    "1\t3\t</s>\t0\t0\t0\t0\n"
)


@pytest.fixture
def write(tmp_path):
    def write(content, name="scores"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write


def test_reads_tables_with_protocol(write):
    for name in (write(TSV), write(gzip.compress(TSV.encode()), "scores.tsv.gz")):
        file = read_scores(name)
        assert file.protocol == {"run": "runs/a", "lines": "independent", "block": "16"}
        assert file.keys == [(1, 1, "the"), (1, 2, "cat"), (1, 3, "</s>")]
        assert file.logprob.tolist() == [-1.5, -2.25, 0]
        assert file.unknown.tolist() == [False, True, False]


def test_reads_base_10(write):
    file = read_scores(write("line\tposition\tword\tlog10\n1\t1\tthe\t-2\n"))
    assert file.logprob.tolist() == [pytest.approx(-2 * math.log(10))]


def test_reads_bits(write):
    file = read_scores(write("line\tposition\tword\tbits\n1\t1\tthe\t3\n1\t2\t</s>\t1.5\n"))
    assert file.logprob == pytest.approx([-3 * math.log(2), -1.5 * math.log(2)])
    assert not file.unknown.any()


def test_protocol_with_spaces_or_missing(write):
    header, row = "line\tposition\tword\tlogprob", "1\t1\tthe\t-2\n"
    file = read_scores(write(f"{header}\t# run=my%20runs/a block=3\n{row}"))
    assert file.protocol == {"run": "my runs/a", "block": "3"}
    assert read_scores(write(f"{header}\n{row}")).protocol == {}


def test_round_trip(write):
    keys = [(1 + n // 3, 1 + n % 3, f"w{n}\u00f6") for n in range(10)]
    logprob, unknown = -np.arange(10) / 8, np.arange(10) % 2 == 0
    text = io.StringIO()
    write_scores(text, ScoreFile("", {"run": "ensemble"}, keys, logprob, unknown))
    file = read_scores(write(text.getvalue()))
    assert file.keys == keys
    assert file.logprob.tolist() == logprob.tolist()
    assert file.unknown.tolist() == unknown.tolist()
    assert file.protocol == {"run": "ensemble"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\t-1.5\t", "\tx\t", "line 2: .* is not a row of line, position, word, logprob"),
        ("\t-1.5\t", "\tnan\t", "line 2: no probability above 0 has logprob nan"),
        ("\t-1.5\t", "\t0.5\t", "line 2: no probability above 0 has logprob 0.5"),
        ("\t-1.5\t", "\t", "line 2: .* is not a row"),
        ("\tword\t", "\ttoken\t", "line 1: has no column word"),
        ("\tlogprob\t", "\tscore\t", "line 1: has no column logprob"),
    ],
)
def test_rejects_bad_rows_with_their_line(write, old, new, message):
    assert old in TSV
    with pytest.raises(ValueError, match=f"scores: {message}"):
        read_scores(write(TSV.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (TSV.split("\n")[0] + "\n", "has a header but no rows"),
        ('{"columns": ["line", "word"]}\n', "line 1: has no column line; .* without --json"),
        (TSV.encode() + b"2\t1\t\xff\t0\t0\t0\t0\n", "line 5: not UTF-8"),
    ],
)
def test_rejects_other_files(write, content, message):
    with pytest.raises(ValueError, match=message):
        read_scores(write(content))


PARTS = ["\t", "\n", "1", "-1", "the", "</s>", "nan", "# run=x", "{", "}", '"word"', ":", ",", "["]
PARTS += ["]", "null", "true", "9" * 5000, "\u00e9", "\0"]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.lists(st.sampled_from(PARTS), max_size=25).map("".join), st.sampled_from([TSV, ""]))
def test_reads_or_rejects_any_file(write, content, begin):
    try:
        file = read_scores(write(begin + content))
    except ValueError as error:
        assert "scores: " in str(error) and len(str(error)) < 1000
    else:
        assert len(file.logprob) == len(file.keys) > 0
