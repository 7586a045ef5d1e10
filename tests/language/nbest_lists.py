"""A small n-best list in every format."""

from zipflm.language.nbest import open_format, read_lists

KALDI = "utt-7-1 a cat sat\nutt-7-2 a cat\nutt-7-10\nb-1 the dog\n"
MOSES = (
    "0 ||| a cat sat ||| LM0= -9.5 TM0= -1 -2 ||| -12.5 ||| 0-0 1-1\n"
    "0 ||| a cat ||| LM0= -8 TM0= -1 -3 ||| -13 ||| 0-0\n"
    "1 |||  ||| LM0= -8 TM0= -1 -3 ||| -13 |||\n"
)
JSONL = (
    '{"id": "u1", "text": "a cat", "scores": {"ac": -3.5}, "speaker": "x"}\n'
    '{"id": "u1", "text": "", "scores": {"ac": -4}}\n'
    '{"id": 2, "text": "the d\\u00f6g", "scores": {"ac": 1}}\n'
)
TSV = "id\tac\ttext\tgraph\nu1\t-3.5\ta cat\t1e2\nu1\t-4\t\t0\nu2\t0\tthe dog\t-1\n"


def read(name, format=None, **options):
    return read_lists(name, open_format(name, format, **options))
