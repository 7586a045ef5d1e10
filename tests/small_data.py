"""A corpus of 200 sentences as data folders, in which a model learns within seconds."""

import random

from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare


def sentences(seed, number=200):
    """Sentences of four to six words out of a hundred, which only memory can predict."""
    draw = random.Random(seed)
    words = [f"{a}{b}" for a in "bdfgklmnps" for b in ("a", "e", "ila", "oro", "u", "an", "i")]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(number):
        yield " ".join(draw.choices(words, weights, k=draw.randint(4, 6)))


def make_folder(root, name, seed=0, **options):
    texts = {}
    for split, number in (("train", 200), ("valid", 20)):
        path = root / f"{name}.{split}.txt"
        path.write_text("\n".join(sentences(seed, number)) + "\n")
        texts[split] = [str(path)]
    out = root / name
    prepare(str(out), texts, Options(min_count=1, **options), processes=1)
    return DataFolder.open(out)
