#!/bin/bash
# Runs one fuzzer for a while: run-fuzzer.sh PROGRAM SOURCE_FOLDER WORK_FOLDER SECONDS
# Inputs it finds worth keeping gather in WORK_FOLDER/corpus/NAME; an input that fails is written to
# WORK_FOLDER/NAME-crash-..., and `PROGRAM FILE` repeats it.
set -euo pipefail

program=$1 source=$2 work=$3 seconds=$4
name=$(basename "$program")
name=${name#fuzz-}
if ! [[ -x $program ]]; then
    echo "$program is not there: build it with -DNOCTURNE_FUZZ=ON (docs/testing.md)" >&2
    exit 1
fi

mkdir -p "$work/corpus/$name"
arguments=(-max_total_time="$seconds" -rss_limit_mb=2048 -timeout=25 -print_final_stats=1 -verbosity=0
    -artifact_prefix="$work/$name-" "$work/corpus/$name")
if [[ -e $source/$name.dict ]]; then
    arguments=(-dict="$source/$name.dict" "${arguments[@]}")
fi
if [[ -d $source/corpus/$name ]]; then
    arguments+=("$source/corpus/$name")
fi
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
exec "$program" "${arguments[@]}"
