#!/bin/bash
# Fails when clang-format would change a file: format.sh SOURCE_FOLDER
# `clang-format -i FILE` mends it; .clang-format holds the style.
set -euo pipefail
cd "$1"
find src kernels tests bench \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' \) -print0 |
    xargs -0 --no-run-if-empty clang-format --dry-run -Werror --ferror-limit=3
