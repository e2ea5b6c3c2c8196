#!/bin/bash
# Proves and measures the CUDA backend on this machine's first device, in less than 8 minutes: bench/device.sh --help
set -euo pipefail

source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=device-report build=build-device packages='' work='' only='' seconds=470 use_built=false
python=${PYTHON:-python3}
all_parts=(facts build tests goldens agree kernels experts bench layer sanitize)

usage() {
    cat <<TEXT
usage: bench/device.sh [--output DIR] [--build DIR] [--built] [--packages DIR] [--work DIR] [--only PART,PART] [--seconds N]

Builds with CUDA, then runs the tests and benches of the CUDA backend on the first device. All output goes to files in DIR; a
table of checks, results and goals comes last. Ends with 1 when a check of correctness fails; speed is only reported.
It needs no network and can be run again: what is built and made is kept.

  --output DIR    where the report goes (default: device-report)
  --build DIR     the build folder (default: build-device)
  --built         use the programs that are in the build folder; don't build
  --packages DIR  .deb files that are unpacked beside the build and used from there, for machines without the libraries:
                  collect them where there is a network, on the same release of the same distribution, with
                  apt-get install --download-only -o Dir::Cache::archives=DIR PACKAGES (as this script names them)
  --work DIR      where checkpoints of 9 GB are made (default: /dev/shm/nocturne-device if it has room, else BUILD/checkpoints);
                  they stay there for the next run
  --only PARTS    of: ${all_parts[*]}
  --seconds N     time for all parts (default: 470)

PYTHON names a Python with numpy, if python3 is not one.
TEXT
}

fail_usage() {
    echo "device.sh: $1 (see bench/device.sh --help)" >&2
    exit 2
}

while (($# > 0)); do
    case $1 in
        --help) usage && exit 0 ;;
        --built) use_built=true ;;
        --output | --build | --packages | --work | --only | --seconds)
            (($# > 1)) || fail_usage "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift
            ;;
        *) fail_usage "unknown argument $1" ;;
    esac
    shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail_usage "--seconds $seconds: give a number"
for part in ${only//,/ }; do
    [[ " ${all_parts[*]} " == *" $part "* ]] || fail_usage "--only $part: give some of ${all_parts[*]}"
done

is_wanted() {
    [[ -z $only || ,$only, == *,$1,* ]]
}

mkdir -p "$output" "$build"
output=$(cd "$output" && pwd)
build=$(cd "$build" && pwd)
deadline=$(($(date +%s) + seconds))

# ---- libraries and programs ----

# Unpacked packages are used from their own folder: programs, headers, libraries, Open MPI's plugins.
unpack() {
    local prefix=$build/packages/usr machine file
    machine=$(uname -m)-linux-gnu
    for file in "$packages"/*.deb; do
        [[ -e $file ]] || fail_usage "--packages $packages: no .deb files there"
        case $(basename "$file") in # the machine's own fit its programs
            libc6_* | libgcc-s1_* | libstdc++6_*) continue ;;
        esac
        [[ ! -e $build/packages/$(basename "$file").done ]] || continue
        mkdir -p "$build/packages"
        dpkg -x "$file" "$build/packages"
        touch "$build/packages/$(basename "$file").done"
    done
    for file in "$prefix"/bin/*.openmpi; do # what the packages' own scripts would do
        [[ ! -e $file || -e ${file%.openmpi} ]] || ln -s "$(basename "$file")" "${file%.openmpi}"
    done
    export PATH=$prefix/bin:$PATH
    export OPAL_PREFIX=$prefix CMAKE_PREFIX_PATH=$prefix PKG_CONFIG_SYSROOT_DIR=$build/packages
    export PKG_CONFIG_PATH=$prefix/lib/$machine/pkgconfig:$prefix/lib/pkgconfig:$prefix/share/pkgconfig
    export CPATH=$prefix/include:$prefix/include/$machine:$prefix/include/hdf5/serial
    local libraries
    libraries=$(find "$prefix/lib/$machine" "$build/packages/lib/$machine" -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | paste -sd :)
    export CMAKE_INCLUDE_PATH=$CPATH CMAKE_LIBRARY_PATH=$libraries
    export LIBRARY_PATH=$libraries LD_LIBRARY_PATH=$libraries:${LD_LIBRARY_PATH:-}
    export PYTHONPATH=$prefix/lib/python3/dist-packages
}

has_header() {
    local folder
    for folder in /usr/include "/usr/include/$(uname -m)-linux-gnu" /usr/include/hdf5/serial ${CPATH:+${CPATH//:/ }}; do
        [[ ! -e $folder/$1 ]] || return 0
    done
    return 1
}

# Adds Ubuntu's name of what isn't there to `missing`.
missing=()
need_command() { # PACKAGE COMMAND
    command -v "$2" >/dev/null || missing+=("$1")
}
need_header() { # PACKAGE HEADER
    has_header "$2" || missing+=("$1")
}

check_machine() {
    local cuda
    for cuda in "${CUDA_HOME:-}" /usr/local/cuda; do
        [[ ! -x $cuda/bin/nvcc ]] || export PATH=$PATH:$cuda/bin:$cuda/compute-sanitizer
    done
    need_command coreutils timeout
    need_command python3 "$python"
    if [[ $use_built == false ]]; then
        need_command cuda-toolkit-13-0 nvcc
        need_command build-essential cc
        need_command cmake cmake
        need_command pkg-config pkg-config
        command -v ninja >/dev/null || need_command make make
        need_command libopenmpi-dev mpicc
        need_header libhdf5-dev hdf5.h
        need_header libhwloc-dev hwloc.h
        need_header libxxhash-dev xxhash.h
        need_header libpng-dev png.h
        need_header libjpeg-dev jpeglib.h
        need_header libwebp-dev webp/demux.h
        need_header libgif-dev gif_lib.h
        need_header liblmdb-dev lmdb.h
        need_header libcmocka-dev cmocka.h
    fi
    local has_numpy=true
    "$python" -c 'import numpy' 2>/dev/null || has_numpy=false
    echo "missing packages: ${missing[*]:-none}"
    if [[ $has_numpy == false ]]; then
        echo "missing python3-numpy: no checkpoints can be made, so the parts bench and layer are left out"
        all_parts=("${all_parts[@]/bench/}")
        all_parts=("${all_parts[@]/layer/}")
    fi
    command -v compute-sanitizer >/dev/null || echo "missing compute-sanitizer (cuda-sanitizer-13-0): the part sanitize is left out"
    if ! nvidia-smi -L >"$output/devices.txt" 2>&1; then
        echo "device.sh: no device: nvidia-smi finds none on this machine. Run it where there is a GPU of compute capability 9.0 or" \
            "newer with its driver."
        exit 3
    fi
    if ((${#missing[@]} > 0)); then
        echo "device.sh: install what is missing, or give the packages with --packages, or programs built elsewhere with --built" >&2
        exit 2
    fi
}

# ---- parts ----

# Runs one step of a part within its time and what is left of all, its output in NAME.txt (or, --json, standard output in
# NAME.jsonl); notes how it ended. Never fails.
run_step() { # [--json] NAME SECONDS COMMAND...
    local target=txt
    if [[ $1 == --json ]]; then
        target=jsonl
        shift
    fi
    local name=$1 limit=$2 left status=0 begin
    shift 2
    begin=$(date +%s)
    left=$((deadline - begin))
    if ((left < 5)); then
        printf '%s\tskipped\t0\n' "$name" >>"$output/steps.tsv"
        echo "$name: no time left"
        return 0
    fi
    echo "$name ..."
    if [[ $target == jsonl ]]; then
        timeout -k 5 "$((left < limit ? left : limit))" "$@" >"$output/$name.jsonl" 2>"$output/$name.txt" || status=$?
    else
        timeout -k 5 "$((left < limit ? left : limit))" "$@" >"$output/$name.txt" 2>&1 || status=$?
    fi
    printf '%s\t%s\t%s\n' "$name" "$status" "$(($(date +%s) - begin))" >>"$output/steps.tsv"
    if ((status != 0)); then
        echo "$name: status $status; the end of $output/$name.txt:"
        tail -n 5 "$output/$name.txt" | sed 's/^/    /'
    fi
}

print_facts() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_cap \
        --format=csv || true
    nvidia-smi || true
    nvcc --version || true
    cmake --version || true
    cc --version || true
    uname -a
    nproc
    git -C "$source_folder" log --oneline -1 2>/dev/null || true
}

build_all() {
    local generator=()
    if command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    cmake -S "$source_folder" -B "$build" "${generator[@]}" -DNOCTURNE_CUDA=ON -DNOCTURNE_WERROR=OFF &&
        cmake --build "$build" --parallel "$(nproc)" --target \
            nocturne golden-forward bench-agree bench-kernels bench-model device-tests
}

# A checkpoint of random numbers, unless it is there: its config.json comes last.
make_checkpoint() { # PRESET
    local folder=$work/$1
    if [[ ! -e $folder/config.json ]]; then
        timeout 240 "$python" "$source_folder/tools/reference/make_checkpoint.py" "$1" "$folder.part"
        mv "$folder.part" "$folder"
    fi
}

choose_work() {
    local free=0
    if [[ -z $work ]]; then
        [[ ! -w /dev/shm ]] || free=$(df --output=avail -BG /dev/shm | tail -n 1 | tr -dc 0-9)
        work=$build/checkpoints
        if ((free >= 24)); then
            work=/dev/shm/nocturne-device
        fi
    fi
    mkdir -p "$work"
}

test_all() {
    local program
    for program in "$build"/bench/device-*; do
        [[ ! -x $program || -d $program ]] || run_step "test-${program##*/device-}" 40 "$program"
    done
}

sanitize_all() {
    command -v compute-sanitizer >/dev/null || return 0
    local name
    for name in route rows sample; do
        run_step "memcheck-$name" 30 compute-sanitizer --tool memcheck --error-exitcode 9 "$build/bench/device-$name"
    done
    for name in route sample; do
        run_step "racecheck-$name" 30 compute-sanitizer --tool racecheck --error-exitcode 9 "$build/bench/device-$name"
    done
}

compare_goldens() {
    local data=$source_folder/tests/data/tiny
    run_step golden-brief 30 "$build/tests/golden/golden-forward" "$data/checkpoint" "$data/golden.h5" cuda brief
    run_step golden-whole 60 "$build/tests/golden/golden-forward" "$data/checkpoint" "$data/golden.h5" cuda
}

measure_kernels() {
    run_step --json kernels 110 "$build/bench/bench-kernels" --backend cuda --published --json --tokens 1,8,64,512,4096 \
        product grouped_product experts attend choose route rms_norm encode encode_fine swiglu collapse_norm mix expand engram_add
}

measure_experts() {
    run_step --json experts 40 "$build/bench/bench-kernels" --backend cuda --json --tokens 512,8192 experts-share
}

# Waits for what makes the checkpoints, which began while the programs were built.
measure_model() { # PRESET OPTION...
    local preset=$1
    shift
    wait "${makers[$preset]}" || true
    if [[ ! -e $work/$preset/config.json ]]; then
        printf 'model-%s\tno checkpoint\t0\n' "$preset" >>"$output/steps.tsv"
        echo "model-$preset: the checkpoint was not made: see $output/make-$preset.txt"
        return 0
    fi
    run_step --json "model-$preset" 60 "$build/bench/bench-model" "$work/$preset" --backend cuda --json "$@"
}

# ---- the run ----

if [[ -n $packages ]]; then
    unpack
fi
check_machine
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=false OMP_WAIT_POLICY=passive
rm -f "$output"/*.jsonl "$output"/*.tsv "$output"/*.txt
choose_work
declare -A makers
for part in bench layer; do
    if is_wanted "$part" && [[ " ${all_parts[*]} " == *" $part "* ]]; then
        (make_checkpoint "$part") >"$output/make-$part.txt" 2>&1 &
        makers[$part]=$!
    fi
done

for part in "${all_parts[@]}"; do
    is_wanted "$part" || continue
    case $part in
        facts)
            print_facts >"$output/facts.txt" 2>&1
            sed -n 1,2p "$output/facts.txt"
            ;;
        build)
            if [[ $use_built == false ]]; then
                export -f build_all
                export source_folder build
                run_step build 200 bash -c build_all
            fi
            if grep -q -P '^build\t(?!0\t)' "$output/steps.tsv" 2>/dev/null; then
                break # nothing else can run
            fi
            ;;
        tests) test_all ;;
        sanitize) sanitize_all ;;
        goldens) compare_goldens ;;
        agree)
            run_step --json agree 60 "$build/bench/bench-agree" "$source_folder/inputs/nano" \
                "$source_folder/tests/data/nano/heldout.jsonl" --json
            ;;
        kernels) measure_kernels ;;
        experts) measure_experts ;;
        bench) measure_model bench --prompts 512,2048,8192 --chunk 2048 --batches 1,8,32,64 ;;
        layer) measure_model layer --whole --prompts 512,8192 --chunk 8192 --batches 1,8,64 ;;
    esac
done
wait
"$python" "$source_folder/bench/device/summary.py" "$output"
