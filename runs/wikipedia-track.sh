#!/usr/bin/env bash
# Train ADP-T for three or eight minutes on one GPU and evaluate it.
#
#   runs/wikipedia-track.sh RECIPE DATA OUT [key=value ...]
#
# RECIPE is one of
#   modern       8 layers, three minutes
#   modern-long  12 layers, eight minutes
#   adamw        the paper's model with 8 layers and without dropout, with AdamW, three minutes
#   paper        the same with the paper's dropout and optimizer, and its schedule shortened from
#                286,000 updates
# DATA is one of the folders that runs/wikipedia-data.sh wrote. Writes the run folder OUT and the
# results OUT/valid.json and OUT/test.json.
set -euo pipefail
recipe=$1 data=$2 out=$3
shift 3

no_dropout="decoder.dropout=0 decoder.attention_dropout=0 decoder.relu_dropout=0 output.tail_dropout=0"
case $recipe in
    modern)
        settings="--recipe modern $no_dropout training.stages= training.max_updates=2950" ;;
    modern-long)
        settings="--recipe modern decoder.num_layers=12 decoder.dropout=0.1 output.tail_dropout=0.1
            training.optimizer.matrix_lr=2.5e-3 training.stages= training.max_updates=5400" ;;
    adamw)
        settings="$no_dropout training.optimizer=AdamW training.schedule=WarmupDecay
            training.clip_norm=1 training.max_updates=3400" ;;
    paper)
        settings="training.max_updates=3250 training.schedule.warmup_updates=182
            training.schedule.first_cycle=205" ;;
    *)
        echo "unknown recipe $recipe; use modern, modern-long, adamw or paper" >&2
        exit 2 ;;
esac

zipflm train wikitext-103/ADP-T --data "$data" --out "$out" decoder.num_layers=8 decoder.num_heads=8 \
    batches.tokens=32768 training.tokens_per_update=32768 batches.eval_break_mode=none \
    training.dtype=bfloat16 training.compile=true training.validate_every=250 \
    training.checkpoint_every=0 $settings "$@"

# Score the validation and test sets in blocks of 512 without context.
for split in valid test; do
    zipflm evaluate "$out" --data "$data" --split "$split" --block 512 --break none --json \
        > "$out/$split.json"
done
