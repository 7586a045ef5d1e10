"""A checkpoint of one process as several would have saved it, without starting them."""

import json

from safetensors.torch import load_file, save_file

from zipflm.runs.checkpoint import Checkpoint
from zipflm.storage import seal

NAMES = {1: "weights.safetensors", 2: "optimizer.safetensors"}


def in_shards(checkpoint, processes=3):
    """Convert a checkpoint to the shards that several processes would have saved."""
    for number, name in NAMES.items():
        tensors = load_file(checkpoint.path / name)
        for rank in range(processes):
            own, places = {}, {}
            for index, (key, tensor) in enumerate(sorted(tensors.items())):
                rows = [] if tensor.ndim == 0 else tensor.tensor_split(processes)
                if rows and len(rows[rank]):
                    own[key] = rows[rank].contiguous()
                    start = sum(len(part) for part in rows[:rank])
                    places[key] = {"saved_offsets": [start] + [0] * (tensor.ndim - 1)}
                elif not rows and index % processes == rank:
                    own[key], places[key] = tensor, {"saved_offsets": []}
            path = checkpoint.path / f"shard-{rank + 1:05d}-model-{number:05d}-of-00002.safetensors"
            save_file(own, path, metadata={"DCP_SHARDING_INFO": json.dumps(places)})
        (checkpoint.path / name).unlink()
    seal(checkpoint.path)
    return Checkpoint(checkpoint.path)
