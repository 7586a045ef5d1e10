"""Reading tests/golden: flat npz names `a/b` become nested dictionaries of tensors and values."""

import json
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(path.stem for path in (GOLDEN / "models").glob("*.npz"))


def load(name: str) -> dict:
    tree: dict = {}
    with np.load(GOLDEN / name) as arrays:
        for key, array in arrays.items():
            *folders, last = key.split("/")
            node = tree
            for folder in folders:
                node = node.setdefault(folder, {})
            if array.dtype.kind == "U":
                node[last] = json.loads(str(array))
            else:
                node[last] = torch.from_numpy(np.asarray(array))
    return tree
