#!/usr/bin/env bash
# Makes a checkpoint and its goldens with the reference and compares the forward pass: PROGRAM PRESET SEED.
set -euo pipefail
program=$1 preset=$2 seed=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tools="$NOCTURNE_SOURCE/tools/reference"
"${PYTHON:-python3}" "$tools/make_checkpoint.py" "$preset" "$folder/checkpoint" --seed "$seed" --shards 3
"${PYTHON:-python3}" "$tools/make_golden.py" "$folder/checkpoint" "$folder/golden.h5" --seed "$seed" --tokens 80
"$program" "$folder/checkpoint" "$folder/golden.h5"
