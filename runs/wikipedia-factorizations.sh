#!/usr/bin/env bash
# Compare the eight factorizations of the paper on the Wikipedia track, from text to report.
#
#   runs/wikipedia-factorizations.sh TEXT_FOLDER DATA OUT [options of zipflm compare, key=value ...]
#
# TEXT_FOLDER and DATA are those of runs/wikipedia-data.sh. Trains models like that of
# `wikipedia-track.sh modern` for 500 updates each or, with `--equal seconds`, for as long as ADP-T
# takes. Run it again to continue.
set -euo pipefail
text=$1 data=$2 out=$3
shift 3

# 1. Prepare subwords for BPE and BPE-T from the same text.
[ -d "$data/rewritten/bpe" ] || zipflm prepare "$data"/text/*.tokens --bpe 32000 \
    --valid "$text/wiki.valid.tokens" --test "$text/wiki.test.tokens" --out "$data/rewritten/bpe"

# 2. Train and score all eight, and write $out/report.html.
zipflm compare --data "$data/rewritten" --preset wikitext-103 --recipe modern --out "$out" \
    decoder.num_layers=8 decoder.num_heads=8 decoder.dropout=0 output.tail_dropout=0 \
    batches.tokens=32768 training.tokens_per_update=32768 training.stages= training.max_updates=500 \
    batches.eval_break_mode=none training.dtype=bfloat16 training.compile=true "$@"
