#!/bin/bash
# Installs a build to a prefix of its own, loads it as a module and runs the quickstart's campaign with it.
#
#     modules.sh BUILD_FOLDER lmod|environment-modules
#
# Status 77: the module system is not here and cannot be fetched.
set -euo pipefail

build=$1
system=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/nocturne-modules-XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() {
    echo "modules.sh: $*" >&2
    exit 1
}

skip() {
    echo "skipped: $*"
    exit 77
}

# Defines `module` from Debian's lmod.
start_lmod() {
    local init
    init=$(find /usr/share/lmod -path '*/init/bash' 2>/dev/null | sort | tail -n 1)
    [[ -n $init ]] || skip "the package lmod is not installed"
    set +eu
    # shellcheck disable=SC1090
    source "$init"
    set -eu
    type module >/dev/null || fail "$init did not define the command module"
}

# Debian's environment-modules cannot be installed beside lmod, so its package is unpacked here.
start_environment_modules() {
    command -v tclsh >/dev/null || skip "the package tcl is not installed"
    (cd "$work" && apt-get download environment-modules >download.log 2>&1) ||
        skip "the package environment-modules cannot be fetched"
    dpkg-deb -x "$work"/environment-modules_*.deb "$work/system"
    modulecmd=$(find "$work/system" -name modulecmd.tcl -path '*linux*')
    [[ -n $modulecmd ]] || fail "the package environment-modules has no modulecmd.tcl"
    export MODULESHOME=$work/system/usr/share/modules
    module() {
        local text
        text=$(tclsh "$modulecmd" bash "$@") || return 1
        eval "$text"
    }
}

check_loaded() {
    [[ $(command -v nocturne) == "$prefix/bin/nocturne" ]] || fail "nocturne is not the installed program"
    [[ $NOCTURNE_ROOT == "$prefix" ]] || fail "NOCTURNE_ROOT is $NOCTURNE_ROOT, not $prefix"
    [[ $(man -w nocturne) == "$prefix/share/man/man1/nocturne.1" ]] || fail "man does not find the page"
    if $has_system_pages; then
        man -w man >/dev/null || fail "man no longer finds the system's own pages"
    fi
}

run_campaign() {
    mkdir "$work/here"
    cd "$work/here"
    head -n 6 "$NOCTURNE_ROOT/share/nocturne/inputs/requests.jsonl" >some.jsonl
    "$NOCTURNE_ROOT/share/nocturne/jobs/quickstart.sh" --ranks 2 --requests some.jsonl >log 2>&1 ||
        { tail -n 30 log; fail "the quickstart failed"; }
    [[ $(wc -l <campaign-quickstart/results.jsonl) == 6 ]] || fail "not every request has an answer"
    ! [[ -e $prefix/share/nocturne/build-quickstart ]] || fail "the quickstart built a program of its own"
}

prefix=$work/"a prefix"
cmake --install "$build" --prefix "$prefix" >"$work/install.log" || fail "cmake --install failed"
page=$(man --warnings --local-file "$prefix/share/man/man1/nocturne.1" 2>&1 >/dev/null)
[[ -z $page ]] || fail "the manual page: $page"

case $system in
lmod) start_lmod ;;
environment-modules) start_environment_modules ;;
*) fail "unknown module system $system" ;;
esac
if command -v nocturne >/dev/null; then
    skip "another nocturne is in PATH"
fi
has_system_pages=false # slim systems have none
if man -w man >/dev/null 2>&1; then
    has_system_pages=true
fi
module use "$prefix/share/modulefiles"
module load nocturne
check_loaded
run_campaign
module unload nocturne
if command -v nocturne >/dev/null || [[ -n ${NOCTURNE_ROOT-} ]]; then
    fail "unloading left something behind"
fi
echo "nocturne was loaded by $system, answered 6 requests and was unloaded"
