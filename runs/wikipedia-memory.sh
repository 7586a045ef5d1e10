#!/usr/bin/env bash
# Evaluate a model of runs/wikipedia-track.sh with a cache and with nearest neighbors.
#
#   runs/wikipedia-memory.sh RUN TEXT_FOLDER DATA OUT [KEYS]
#
# TEXT_FOLDER is that of runs/wikipedia-data.sh, DATA the data folder of the run. KEYS is the size of
# the store, 16M by default (33 GB). Memories are tuned on the first half of the validation set and
# evaluated on the second half and on the test set.
set -euo pipefail
run=$1 text=$2 data=$3 out=$4 keys=${5:-16M}

# 1. Cut the validation set into two halves, at the article that starts closest to the middle.
mkdir -p "$out/halves"
awk -v folder="$out/halves" '
    { line[NR] = $0; before[NR] = tokens; tokens += NF + 1 }
    $0 ~ /^ = [^=].* = $/ { heading[NR] }
    END {
        for (n in heading) {
            distance = before[n] - tokens / 2
            if (distance < 0) distance = -distance
            if (!cut || distance < least) { cut = n + 0; least = distance }
        }
        for (n = 1; n <= NR; n++) print line[n] > (folder (n < cut ? "/first" : "/second") ".tokens")
    }' "$text/wiki.valid.tokens"
head -n 1000 "$text/wiki.valid.tokens" > "$out/halves/unused.tokens"  # a data folder needs a train split
[ -d "$out/halves/data" ] || zipflm prepare "$out/halves/unused.tokens" \
    --vocabulary "$text/dict.txt" --valid "$out/halves/first.tokens" \
    --test "$out/halves/second.tokens" --out "$out/halves/data"

evaluate() {  # on the second half and on the test set; arguments: --memory options
    for folder in "$out/halves/data" "$data"; do
        zipflm evaluate "$run" --data "$folder" --split test --block 512 --break none "$@"
    done
}

# 2. Evaluate without a memory, and with a cache alone.
zipflm memory tune "$run" --data "$out/halves/data" --block 512 --context 0
evaluate
evaluate --memory cache

# 3. Nearest neighbors in the training text, then a cache on top.
[ -e "$out/store/memory.json" ] || zipflm memory build "$run" --data "$data" \
    --out "$out/store" --max-keys "$keys"
zipflm memory tune "$run" --data "$out/halves/data" --block 512 --context 0 \
    --memory "$out/store" --memory cache
evaluate --memory "$out/store" --memory cache
