#!/usr/bin/env bash
# Train ADP-T in about three minutes on one GPU, from text to perplexity.
#
#   runs/wikipedia-track.sh TEXT_FOLDER OUT [key=value ...]
#
# TEXT_FOLDER contains the training text (*.tokens, one paragraph per line, extracted from Wikipedia),
# wiki.valid.tokens and wiki.test.tokens of WikiText-103, and its dictionary as dict.txt.
set -euo pipefail
text=$1 out=$2
shift 2

# 1. Format the training text like WikiText, then turn words into ids with its dictionary (267,744
#    ids).
mkdir -p "$out/text"
for file in $(ls "$text"/*.tokens | grep -v -E 'wiki\.(valid|test)'); do
    python "$(dirname "$0")/wikitext_format.py" "$text/dict.txt" "$file" "$out/text/$(basename "$file")" &
done
wait
zipflm prepare "$out"/text/*.tokens --vocabulary "$text/dict.txt" \
    --valid "$text/wiki.valid.tokens" --test "$text/wiki.test.tokens" --out "$out/data"

# 2. Train: 2,950 updates of 32,768 tokens. Little more than one pass over the text
#    needs no dropout.
zipflm train wikitext-103/ADP-T --recipe modern --data "$out/data" --out "$out/run" \
    decoder.num_layers=8 decoder.num_heads=8 decoder.dropout=0 output.tail_dropout=0 \
    batches.tokens=32768 training.tokens_per_update=32768 training.max_updates=2950 \
    batches.eval_break_mode=none training.stages= "$@"

# 3. Score the validation and test sets in blocks of 512 without context.
for split in valid test; do
    zipflm evaluate "$out/run" --data "$out/data" --split "$split" --block 512 --break none
done
