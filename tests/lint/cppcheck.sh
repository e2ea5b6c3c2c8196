#!/bin/bash
# cppcheck over all C files of the product: cppcheck.sh SOURCE_FOLDER BUILD_FOLDER WORK_FOLDER
#
# Left out: invalidPointerCast (arrays of several types share one allocation, each at its alignment) and ctuuninitvar (it takes a
# struct that the called function fills for one that is read).
set -euo pipefail
source=$1 work=$3/cppcheck
cd "$source"
mkdir -p "$work"
exec cppcheck --quiet --error-exitcode=1 --enable=warning,performance,portability --inline-suppr --std=c11 \
    --cppcheck-build-dir="$work" -j "$(nproc)" --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
    --suppress=invalidPointerCast --suppress=ctuuninitvar -DINSTRUCTION_SET=generic \
    -D_GNU_SOURCE -DNOCTURNE_VERSION='"0"' -I src -I . src kernels
