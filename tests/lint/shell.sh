#!/bin/bash
# Runs shellcheck over all shell scripts: shell.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
# Scripts end in .sh, or begin with a shell's interpreter line.
{
    find jobs tests bench tools -name '*.sh' -print0
    grep --recursive --files-with-matches --null --max-count=1 --extended-regexp '^#!/bin/(ba)?sh' .ci
} | xargs -0 shellcheck --external-sources
