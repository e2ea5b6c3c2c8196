#!/usr/bin/env python3
"""nocturne cache on a folder that `faults-cache make` fills: sums, lists, damage and its repair, pruning, export, refusals.

CACHE_MAKER names that program."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM = os.environ["NOCTURNE_PROGRAM"]
MAKER = os.environ["CACHE_MAKER"]
BLOCKS, PAYLOAD, STRIDE, HEADER = 300, 20011, 20011 + 64, 512


def run(*arguments, expect=0):
    done = subprocess.run([PROGRAM, "cache", *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != expect:
        sys.exit(f"cache {arguments}: exit code {done.returncode}, not {expect}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def check(right, what):
    if not right:
        sys.exit(f"wrong: {what}")


def entries(folder, *arguments):
    return [json.loads(line) for line in run("list", "--json", *arguments, folder)[0].splitlines()]


def make(folder):
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([MAKER, "make", folder, str(BLOCKS)], check=True, timeout=120)


def sums_and_lists(folder):
    total = json.loads(run("stat", "--json", folder)[0])
    check(total["entries"] == BLOCKS and total["bytes"] == BLOCKS * PAYLOAD, total)
    check(total["file_bytes"] == HEADER + BLOCKS * STRIDE, total)
    check(sum(kind["entries"] for kind in total["traffic"].values()) == BLOCKS, total)
    check(len(total["spaces"]) == 1 and total["spaces"][0]["block_tokens"] == 16, total)
    check("checkpoint abc, backend cpu, avx2" in run("stat", folder)[0], "stat as text")
    all_entries = entries(folder)
    check(len({entry["key"] for entry in all_entries}) == BLOCKS, "keys")
    check({entry["space"] for entry in all_entries} == {total["spaces"][0]["space"]}, "spaces")
    check(len(run("list", folder)[0].splitlines()) == BLOCKS + 1, "list as text")
    chats = entries(folder, "--traffic", "chat")
    check(len(chats) == total["traffic"]["chat"]["entries"] and all(e["traffic"] == "chat" for e in chats), "chats")
    check(len(entries(folder, "--space", total["spaces"][0]["space"][:6])) == BLOCKS, "its space")
    check(entries(folder, "--space", "no") == [], "no space")


def damage(folder):
    run("verify", folder)
    victims = entries(folder)[7:20:6]
    for victim in victims:
        with open(victim["segment"], "r+b") as file:
            file.seek(victim["offset"] + 64 + 1000)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 4]))
    for _ in range(2):  # looking at it changes nothing
        out, errors = run("verify", folder, expect=3)
        for victim in victims:
            check(f"damaged: {victim['key']} at {victim['segment']}, byte {victim['offset']}" in out, out)
        check(f"{len(victims)} entries are damaged" in errors, errors)
        check(len(entries(folder)) == BLOCKS, "entries before the repair")
    run("verify", "--repair", folder, expect=3)
    run("verify", folder)
    left = {entry["key"] for entry in entries(folder)}
    check(len(left) == BLOCKS - len(victims) and not left & {victim["key"] for victim in victims}, "after the repair")


def pruning(folder):
    before = entries(folder)
    out = run("prune", "--max-bytes", "3M", "--policy", "oldest", "--dry-run", folder)[0]
    check(len(entries(folder)) == BLOCKS, "a dry run removes nothing")
    would = int(out.split(": ")[1].split()[0])
    run("prune", "--max-bytes", "3M", "--policy", "oldest", folder)
    left = entries(folder)
    check(len(left) == BLOCKS - would and 100 < len(left) < 160, (would, len(left)))
    files = sum(os.path.getsize(os.path.join(folder, "segments", name)) for name in os.listdir(folder + "/segments"))
    check(files <= 3 << 20, files)
    # Aligned times (src/cache/policy.h); what is listed of them is rounded to milliseconds.
    aligned = lambda entry: entry["created"] - 0.02 * entry["first_token"]
    check(min(map(aligned, left)) >= sorted(map(aligned, before))[would] - 0.002, "the oldest went")
    run("verify", folder)
    run("prune", "--older-than", "1", folder)
    check(len(entries(folder)) == len(left), "nothing is an hour old")


def exporting(folder, other):
    total = json.loads(run("stat", "--json", folder)[0])
    run("export", "--traffic", "agent", "--to", other, folder)
    copied = entries(other)
    check(len(copied) == total["traffic"]["agent"]["entries"] > 0, len(copied))
    run("export", "--to", other, folder)
    run("verify", other)
    same = lambda listed: sorted((e["key"], e["traffic"], e["first_token"], e["cost_seconds"], e["created"]) for e in listed)
    check(same(entries(other)) == same(entries(folder)), "all is there, with its facts")
    run("export", "--to", folder, folder, expect=2)


def refusals(folder):
    check("is no folder of a prefix cache" in run("stat", folder + "/nothing", expect=3)[1], "a folder that is not there")
    check("give one folder" in run("stat", expect=2)[1], "no folder")
    check("give stat, list" in run(expect=2)[1], "no command")
    check("give stat, list" in run("clean", folder, expect=2)[1], "an unknown command")
    for name in ("stat", "list", "verify", "prune", "export"):
        check(f"usage: nocturne cache {name}" in run(name, "--help")[0], name)
        check(name in run("--help")[0], name)


with tempfile.TemporaryDirectory() as temporary:
    cache = temporary + "/cache"
    for test, arguments in ((sums_and_lists, ()), (damage, ()), (pruning, ()), (exporting, (temporary + "/other",)), (refusals, ())):
        make(cache)
        test(cache, *arguments)
        print(test.__name__, "passed")
