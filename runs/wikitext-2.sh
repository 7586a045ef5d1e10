#!/usr/bin/env bash
# The paper's eight factorizations on WikiText-2, all in about five minutes per seed on one GPU:
# text to report, top to bottom.
#
#   runs/wikitext-2.sh TEXT_FOLDER OUT [options of zipflm compare, key=value ...]
#
# TEXT_FOLDER holds WikiText-2's wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or the
# same compressed (.xz, .gz, .bz2).
set -euo pipefail
text=$1 out=$2
shift 2

# 1. Words to ids (33,280 of them), and the same text in sub-words for BPE and BPE-T (8,152).
splits=("$text"/wiki.train.tokens* --valid "$text"/wiki.valid.tokens* --test "$text"/wiki.test.tokens*)
[ -d "$out/data" ] || zipflm prepare "${splits[@]}" --out "$out/data"
[ -d "$out/data/bpe" ] || zipflm prepare "${splits[@]}" --bpe 8000 --out "$out/data/bpe"

# 2. Train all eight, score them, write $out/study/report.html. Interrupted, it goes on.
zipflm compare --data "$out/data" --preset wikitext-2 --out "$out/study" "$@"
