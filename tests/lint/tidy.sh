#!/bin/bash
# clang-tidy over all C files of the product: tidy.sh SOURCE_FOLDER BUILD_FOLDER WORK_FOLDER
# BUILD_FOLDER holds compile_commands.json. A file that passed is not checked again until it, any header or the list of checks
# changes: WORK_FOLDER/tidy remembers.
set -euo pipefail

source=$1 build=$2 work=$3/tidy
cd "$source"
mkdir -p "$work"
common=$({
    cat .clang-tidy tests/lint/analyzer.h
    find src kernels -name '*.h' -print0 | sort -z | xargs -0 cat
} | sha256sum | cut -c 1-32)

check() { # FILE
    local stamp output
    stamp=$work/$(sha256sum "$1" | cut -c 1-32)-$common
    if [[ -e $stamp ]]; then
        return 0
    fi
    local arguments=(--quiet -p "$build")
    if [[ $1 != src/base/error.c ]]; then # it defines what analyzer.h replaces
        arguments+=(--extra-arg-before=-include --extra-arg-before="$source/tests/lint/analyzer.h")
    fi
    # Its count of suppressed warnings goes to standard error: noise unless it fails.
    if output=$(clang-tidy "${arguments[@]}" "$1" 2>&1); then
        touch "$stamp"
    else
        printf '%s\n' "$output"
        echo "clang-tidy: $1 failed"
        return 1
    fi
}
export -f check
export source work common build

# shellcheck disable=SC2016 # the inner shell expands it
find src kernels -name '*.c' -print0 | sort -z |
    xargs -0 --max-procs="$(nproc)" --max-args=1 bash -c 'check "$0"'
