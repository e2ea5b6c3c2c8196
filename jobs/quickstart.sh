#!/bin/bash
# Runs a whole campaign on this machine: installs what is missing, builds, and takes the example requests through the
# embedded model in four separate launches: ingest, prefill, decode, export. From an installed Nocturne (share/nocturne/jobs)
# it takes the installed program instead of building one.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
installed=
home=$root # where the campaign goes, unless told
if ! [[ -e $root/CMakeLists.txt ]]; then
    installed=$(cd "$root/../.." && pwd)/bin/nocturne
    home=$PWD
fi

usage() {
    cat <<USAGE
usage: jobs/quickstart.sh [--ranks N] [--campaign DIR] [--requests FILE]

  --ranks N        local MPI ranks for prefill and decode (4)
  --campaign DIR   where the campaign goes; an unfinished one is resumed
                   (campaign-quickstart in the source folder, or for an
                   installed program in the current one, made anew each time)
  --requests FILE  OpenAI batch lines (inputs/requests.jsonl)
  --help           this text

The program is built in build-quickstart/, for CPUs only, unless this script is part of an installation. CMake's and
apt-get's output is shown only when they fail.
USAGE
}

ranks=4
campaign=
requests=$root/inputs/requests.jsonl
while (($# > 0)); do
    case "$1" in
    --help | -h)
        usage
        exit 0
        ;;
    --ranks | --campaign | --requests)
        if (($# < 2)); then
            echo "quickstart: $1 needs a value" >&2
            exit 2
        fi
        case "$1" in
        --ranks) ranks=$2 ;;
        --campaign) campaign=$2 ;;
        --requests) requests=$2 ;;
        esac
        shift 2
        ;;
    *)
        echo "quickstart: unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
done
if ! [[ $ranks =~ ^[1-9][0-9]{0,2}$ ]]; then
    echo "quickstart: --ranks: expected a number from 1 to 999, found '$ranks'" >&2
    exit 2
fi
if ! [[ -r $requests ]]; then
    echo "quickstart: cannot read $requests" >&2
    exit 3
fi

say() {
    printf '\n== %s\n' "$*"
}

# Runs a command with its output in a log that is shown only when it fails.
quietly() {
    if ! "$@" >"$log" 2>&1; then
        tail --lines=60 "$log" >&2
        echo "quickstart: failed: $*" >&2
        exit 1
    fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
SECONDS=0

build() {
    local started build=$root/build-quickstart # not build/, which may be set up otherwise
    say "Packages"
    "$root/jobs/install-packages.sh" build
    echo "all there ($SECONDS s)"
    say "Build (Release, for CPUs, in $build)"
    started=$SECONDS
    local generator=()
    if ! [[ -e $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    quietly cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DNOCTURNE_CUDA=OFF \
        -DNOCTURNE_TESTS=OFF -DNOCTURNE_BENCH=OFF
    quietly cmake --build "$build" --parallel "$(nproc)" --target nocturne
    echo "built ($((SECONDS - started)) s)"
    nocturne=$build/nocturne
}

if [[ -n $installed ]]; then
    nocturne=$installed
    if ! [[ -x $nocturne ]]; then
        echo "quickstart: this is an installation, but $nocturne is not there" >&2
        exit 4
    fi
else
    build
fi
campaign_started=$SECONDS

if [[ -z $campaign ]]; then
    campaign=$home/campaign-quickstart
    rm -rf "$campaign"
fi
# shellcheck source=jobs/mpi-environment.sh
source "$root/jobs/mpi-environment.sh"

say "Ingest: batch lines to token ids"
"$nocturne" ingest --input "$requests" --model "$root/inputs/nano" --campaign "$campaign"

for phase in prefill decode; do
    case $phase in
    prefill) say "Prefill on $ranks ranks: prompts to sequence states" ;;
    decode) say "Decode on $ranks ranks: sequence states to answers" ;;
    esac
    mpirun -n "$ranks" "$nocturne" "$phase" --campaign "$campaign"
    "$nocturne" status --campaign "$campaign"
done

say "Export: OpenAI batch output lines"
"$nocturne" export --campaign "$campaign"

say "Some answers"
# The first choice of some answers, without a JSON tool: the text is a JSON string, of which \n and \" are undone.
sed --quiet --regexp-extended \
    's/^.*"custom_id": ?"([^"]*)".*"content": ?"(([^"\\]|\\.)*)".*$/\1\t\2/p' "$campaign/results.jsonl" |
    awk -F '\t' 'NR % 5 == 1 { gsub(/\\n/, "\n    ", $2); gsub(/\\"/, "\"", $2); gsub(/\\\\/, "\\", $2)
                               printf "%s:\n    %s%s\n", $1, substr($2, 1, 300), (length($2) > 300 ? " ..." : "") }'

say "Files"
echo "answers                $campaign/results.jsonl"
if [[ -e $campaign/errors.jsonl ]]; then
    echo "refused lines          $campaign/errors.jsonl"
fi
echo "answers for analysis   $campaign/results.h5"
echo "the program            $nocturne"
echo "campaign $((SECONDS - campaign_started)) s, all $SECONDS s"
