#!/usr/bin/env bash
# The eight factorizations of the paper on WikiText-2, from text to report, in a few minutes per seed
# on one GPU.
#
#   runs/wikitext-2.sh TEXT_FOLDER OUT [options of zipflm compare, key=value ...]
#
# TEXT_FOLDER contains wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens of WikiText-2,
# compressed (.xz, .gz, .bz2) or not.
set -euo pipefail
text=$1 out=$2
shift 2

# 1. Prepare words (33,280 ids), and subwords for BPE and BPE-T (8,152 ids).
splits=("$text"/wiki.train.tokens* --valid "$text"/wiki.valid.tokens* --test "$text"/wiki.test.tokens*)
[ -d "$out/data" ] || zipflm prepare "${splits[@]}" --out "$out/data"
[ -d "$out/data/bpe" ] || zipflm prepare "${splits[@]}" --bpe 8000 --out "$out/data/bpe"

# 2. Train all eight, score them, write $out/study/report.html. Run it again to continue.
zipflm compare --data "$out/data" --preset wikitext-2 --out "$out/study" "$@"
