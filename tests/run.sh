#!/bin/bash
# All tests: installs what is missing, builds with gcc and (sanitized, with the fuzzers) with clang, both with warnings
# as errors, and ends in one run of ctest. See docs/testing.md.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    cat <<USAGE
usage: tests/run.sh [--quick] [-- CTEST_ARGUMENTS]

  --quick   only the gcc build: no sanitizers, fuzzers or clang-tidy, and fewer rounds of the kill test
  --help    this text

Builds in build-test/ and build-sanitize/. Arguments after -- go to ctest: tests/run.sh -- -R unit-json
The kill test runs 100 rounds (50 when CI is set), each fuzzer 60 s; KILL_ROUNDS and FUZZ_SECONDS change that.
USAGE
}

quick=false
while (($# > 0)); do
    case "$1" in
    --quick) quick=true ;;
    --help | -h)
        usage
        exit 0
        ;;
    --)
        shift
        break
        ;;
    *)
        echo "tests/run.sh: unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done
ctest_arguments=("$@")

kill_rounds=100
if [[ -n "${CI-}" ]]; then
    kill_rounds=50
fi
if $quick; then
    kill_rounds=5
    ctest_arguments+=(--exclude-regex '^lint-tidy$')
fi
kill_rounds=${KILL_ROUNDS-$kill_rounds}

"$root/jobs/install-packages.sh" test
# shellcheck source=jobs/mpi-environment.sh
source "$root/jobs/mpi-environment.sh"

# Debian's Python is the one that the packages above gave numpy and h5py.
python=/usr/bin/python3
if [[ -n "${NOCTURNE_SKIP_PACKAGES-}" ]]; then
    python=$(command -v python3)
fi
common=(-DNOCTURNE_WERROR=ON -DNOCTURNE_TESTS=ON -DNOCTURNE_PYTHON="$python")

# build NAME FOLDER CMAKE_ARGUMENTS: configures and builds, quietly unless it fails.
build() {
    local name=$1 folder=$2 started=$SECONDS log
    shift 2
    log=$(mktemp)
    if ! { cmake -S "$root" -B "$folder" "${common[@]}" "$@" &&
        cmake --build "$folder" --parallel "$(nproc)" -- -k 0; } \
        >"$log" 2>&1; then
        grep --extended-regexp --after-context=6 ' error:|CMake Error|undefined reference' "$log" |
            head --lines=120 >&2 || true
        tail --lines=10 "$log" >&2
        rm -f "$log"
        echo "tests/run.sh: the $name build failed" >&2
        exit 1
    fi
    rm -f "$log"
    echo "$name build: $((SECONDS - started)) s"
}

sanitized=
if ! $quick; then
    sanitized=$root/build-sanitize
    build "sanitized clang" "$sanitized" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=None \
        -DCMAKE_C_FLAGS=-O1 -DNOCTURNE_SANITIZE=address,undefined,fuzzer-no-link -DNOCTURNE_FUZZ=ON \
        -DNOCTURNE_BENCH=OFF -DNOCTURNE_FUZZ_SECONDS="${FUZZ_SECONDS-60}"
fi
build "gcc" "$root/build-test" -G Ninja -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release -DNOCTURNE_BENCH=ON \
    -DNOCTURNE_SANITIZED_BUILD="$sanitized" -DNOCTURNE_KILL_ROUNDS="$kill_rounds" \
    -DNOCTURNE_FUZZ_SECONDS="${FUZZ_SECONDS-60}"

exec ctest --test-dir "$root/build-test" --output-on-failure --no-tests=error --parallel "$(nproc)" \
    --no-label-summary "${ctest_arguments[@]}"
