"""Measure the decoders: tokens per second in training, words per second in streaming.

    python benchmarks/decoders.py --device cuda --preset wikitext-2/ADP-T
    python benchmarks/decoders.py --device cpu --preset tiny/ADP-T --steps 5

Each decoder has about the size of the preset's Transformer. Training uses ids that follow Zipf's
law. Streaming reads and scores one word at a time on the CPU, in float32. Prints a JSON object for
each decoder.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from common import fake_vocabulary, parser_of, random_tokens
from training_step import measure

from zipflm.distributed import processes
from zipflm.evaluation.streaming import streaming_speed
from zipflm.presets import from_name
from zipflm.presets.rivals import DECODERS, with_decoder
from zipflm.runs.load import untrained_model
from zipflm.settings import override
from zipflm.training.throughput import reset_peak_memory


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "wikitext-2/ADP-T")
    parser.add_argument("--steps", type=int, default=50, help="updates to time")
    parser.add_argument("--decoders", nargs="+", default=list(DECODERS), choices=list(DECODERS))
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="seconds of streaming per decoder"
    )
    options = parser.parse_args(arguments)
    with processes.started(options.device) as process:
        for name in options.decoders:
            preset = override(with_decoder(from_name(options.preset), name), options.overrides)
            # Half precision is slow on most CPUs.
            dtype = preset.training.dtype if process.device.type == "cuda" else "float32"
            config = replace(preset, training=replace(preset.training, dtype=dtype))
            reset_peak_memory(process.device)
            trained = measure(config, process, options.steps)
            block = config.batches.eval_block
            model = untrained_model(config, fake_vocabulary(config))
            ids = random_tokens(config.vocab_size, 2 * block).ids
            speed = streaming_speed(model, ids, block, options.seconds)
            decoder = {"decoder": name, "decoder_params": sum(config.decoder.params().values())}
            streamed = {"streaming_words_per_second": speed, "threads": torch.get_num_threads()}
            print(json.dumps(decoder | trained | streamed))


if __name__ == "__main__":
    main()
