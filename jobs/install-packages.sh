#!/bin/bash
# Installs the Debian packages that are missing, and only those.
#
#     jobs/install-packages.sh build     what it takes to build and run Nocturne
#     jobs/install-packages.sh test      that, and what tests/run.sh needs
#
# As root it calls apt-get; as another user it ends with status 1 and the command that root would have to run.
# When nothing is missing it does nothing, so systems other than Debian can use it too once the same programs are
# there: NOCTURNE_SKIP_PACKAGES=1 leaves the check out.
set -euo pipefail

build_packages=(build-essential cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev libhwloc-dev
    libxxhash-dev libpng-dev libjpeg62-turbo-dev libwebp-dev libgif-dev liblmdb-dev libssl-dev)
test_packages=(libcmocka-dev python3 python3-numpy python3-h5py python3-jsonschema hdf5-tools clang clang-format clang-tidy
    libclang-rt-14-dev libomp-14-dev llvm cppcheck shellcheck valgrind lmod tcl man-db groff-base slurm-wlm munge)

case "${1-}" in
build) wanted=("${build_packages[@]}") ;;
test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
*)
    echo "usage: $0 build|test" >&2
    exit 2
    ;;
esac

if [[ "${NOCTURNE_SKIP_PACKAGES-}" == 1 ]]; then
    exit 0
fi
if ! command -v dpkg-query >/dev/null; then
    echo "$0: this system does not use Debian packages. Install the equivalents of: ${wanted[*]}" >&2
    echo "$0: and run again with NOCTURNE_SKIP_PACKAGES=1." >&2
    exit 1
fi

missing=()
for package in "${wanted[@]}"; do
    # An architecture-qualified answer may list several; one that is installed is enough.
    state=$(dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null || true)
    if ! grep --quiet --line-regexp installed <<<"$state"; then
        missing+=("$package")
    fi
done
if ((${#missing[@]} == 0)); then
    exit 0
fi

if ((EUID != 0)); then
    echo "$0: packages are missing. As root, run:" >&2
    echo "    apt-get update && apt-get install --yes --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

echo "Installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# apt's own output is long and of interest only when it fails.
if ! { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail --lines=40 "$log" >&2
    echo "$0: apt-get could not install: ${missing[*]}" >&2
    exit 1
fi
