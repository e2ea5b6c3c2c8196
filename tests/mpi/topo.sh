#!/bin/bash
# `nocturne topo` under mpirun shows the run itself: topo.sh PROGRAM MPIRUN...
set -euo pipefail
program=$1
shift

table=$("$@" -n 4 "$program" topo --supernode 2 --experts 10)
grep -q '^run: 4 ranks on 1 node, 2 supernodes of 2$' <<<"$table"
# Rank, host, supernode ... experts: the shards of each supernode start again.
[[ $(awk '$1 ~ /^[0-9]+$/ { print $1, $3, $NF }' <<<"$table") == $'0 0 0-4\n1 0 5-9\n2 1 0-4\n3 1 5-9' ]]
[[ $(awk '$1 ~ /^[0-9]+$/ { print $2 }' <<<"$table" | sort -u) == $(hostname) ]]

# What a described machine looks like needs no run: one process prints it, however many were started.
[[ $("$@" -n 3 "$program" topo --topology 'core:4 pu:1' | grep -c '^machine:') == 1 ]]
