#!/usr/bin/env bash
# Prepare the text of the Wikipedia track as it is and in the format of WikiText.
#
#   runs/wikipedia-data.sh TEXT_FOLDER OUT
#
# TEXT_FOLDER contains the training text (*.tokens, one paragraph per line, extracted from Wikipedia),
# wiki.valid.tokens and wiki.test.tokens of WikiText-103, and its dictionary as dict.txt. Writes the
# data folders OUT/original and OUT/rewritten, each with the 267,744 ids of the dictionary.
set -euo pipefail
text=$1 out=$2

train=()
for file in "$text"/*.tokens; do
    case $file in
        *wiki.valid.tokens | *wiki.test.tokens) ;;
        *) train+=("$file") ;;
    esac
done

prepare() {  # arguments: the data folder, the training text
    zipflm prepare "${@:2}" --vocabulary "$text/dict.txt" --valid "$text/wiki.valid.tokens" \
        --test "$text/wiki.test.tokens" --out "$out/$1"
}
prepare original "${train[@]}"

mkdir -p "$out/text"
rewriting=()
for file in "${train[@]}"; do
    python "$(dirname "$0")/wikitext_format.py" "$text/dict.txt" "$file" "$out/text/$(basename "$file")" &
    rewriting+=($!)
done
for process in "${rewriting[@]}"; do wait "$process"; done
prepare rewritten "$out"/text/*.tokens
