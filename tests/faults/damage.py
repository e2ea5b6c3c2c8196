"""Damages files of a campaign between launches: every torn, truncated, altered or foreign part is named, set aside and its
requests computed again, so that the campaign ends as an undisturbed one does.

    damage.py [TEST ...]
"""

import glob
import os
import random
import shutil
import sys

import campaigns
from campaigns import INPUT, answers, check, compare, fresh_copy, ingest, parts, run

RANKS = 2
SMALL_PARTS = ["--threads", "1", "--part-seconds", "0", "--batch", "2", "--step-tokens", "128"]


def cut(size):
    def damage(path, _other):
        os.truncate(path, size if size >= 0 else os.path.getsize(path) + size)

    return damage


def alter(offset):
    def damage(path, _other):
        with open(path, "r+b") as file:
            place = offset if offset >= 0 else os.path.getsize(path) + offset
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0x20]))

    return damage


def grow(path, _other):
    with open(path, "ab") as file:
        file.write(b"x")


def replace_with_text(path, _other):
    with open(path, "w", encoding="ascii") as file:
        file.write("this is no part\n" * 100)


def replace_with_foreign(path, other):
    shutil.copyfile(other, path)


DAMAGES = {
    "empty": cut(0),
    "one byte": cut(1),
    "header cut": cut(511),
    "header alone": cut(512),
    "content begun": cut(700),
    "last byte lost": cut(-1),
    "header altered": alter(20),
    "content altered": alter(1000),
    "last byte altered": alter(-1),
    "grown": grow,
    "text": replace_with_text,
    "foreign": replace_with_foreign,
}


class Template:
    """An undisturbed campaign in many small parts, and one of other requests."""

    def __init__(self, folder):
        requests = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(12, 10))
        self.campaign = os.path.join(folder, "template")
        ingest(self.campaign, requests)
        run(["prefill", "--campaign", self.campaign, *SMALL_PARTS], RANKS)
        self.prefilled = fresh_copy(self.campaign, os.path.join(folder, "prefilled"))
        run(["decode", "--campaign", self.campaign, *SMALL_PARTS], RANKS)
        self.expected = answers(self.campaign)
        other = [line.replace("dog", "cat").replace("fox", "horse") for line in campaigns.small_requests(12, 10)]
        other_requests = campaigns.write_lines(os.path.join(folder, "other.jsonl"), other)
        self.other = os.path.join(folder, "other")
        ingest(self.other, other_requests)
        run(["prefill", "--campaign", self.other, *SMALL_PARTS], RANKS)
        run(["decode", "--campaign", self.other, *SMALL_PARTS], RANKS)


def damage_parts(template, source, phase, target):
    """Damages parts of a copy in all ways, as many at once as there are parts; yields (campaign, names) each time."""
    ways = list(DAMAGES.items())
    while ways:
        campaign = fresh_copy(source, target)
        paths = parts(campaign, phase)
        check(len(paths) >= 4, f"{phase}: only {len(paths)} parts, expected several")
        other = parts(template.other, phase)[0]
        damaged = []
        for path in paths[1:]:  # one stays whole
            if not ways:
                break
            name, damage = ways.pop()
            damage(path, other)
            damaged.append((name, path))
        yield campaign, damaged


def check_set_aside(output, damaged):
    for name, path in damaged:
        short = os.path.join(*path.split(os.sep)[-2:])
        check(short in output, f"{name}: the output does not name {short}\n{output}")
        check(os.path.exists(path + ".damaged"), f"{name}: {short} is not set aside\n{output}")


def results_parts(folder):
    template = Template(folder)
    for campaign, damaged in damage_parts(template, template.campaign, "results", os.path.join(folder, "damaged")):
        output, _ = run(["decode", "--campaign", campaign, *SMALL_PARTS], RANKS)
        check_set_aside(output, damaged)
        compare(answers(campaign), template.expected, ", ".join(name for name, _ in damaged))


def prefill_parts(folder):
    template = Template(folder)
    for campaign, damaged in damage_parts(template, template.prefilled, "prefill", os.path.join(folder, "damaged")):
        output, _ = run(["prefill", "--campaign", campaign, *SMALL_PARTS], RANKS)
        check_set_aside(output, damaged)
        run(["decode", "--campaign", campaign, *SMALL_PARTS], RANKS)
        compare(answers(campaign), template.expected, ", ".join(name for name, _ in damaged))


def requests_file(folder):
    """A damaged requests.h5 ends every rank with the same code and a message that names it."""
    template = Template(folder)
    for name in ("empty", "header cut", "content begun", "last byte lost", "header altered", "content altered", "text"):
        campaign = fresh_copy(template.prefilled, os.path.join(folder, "damaged"))
        DAMAGES[name](os.path.join(campaign, "requests.h5"), None)
        output = campaigns.run_each(["decode", "--campaign", campaign], RANKS, INPUT)
        check("requests.h5" in output, f"{name}: the message does not name requests.h5\n{output}")


def leftovers(folder):
    """Temporary files of a dead launch are removed; files that are not ours stay."""
    template = Template(folder)
    campaign = fresh_copy(template.prefilled, os.path.join(folder, "leftovers"))
    rank = os.path.join(campaign, "prefill", "rank-0000")
    torn = os.path.join(rank, ".part-000099.h5.somehost.123.tmp")
    note = os.path.join(rank, "note.txt")
    for path in (torn, note):
        with open(path, "w", encoding="ascii") as file:
            file.write("left")
    run(["prefill", "--campaign", campaign, *SMALL_PARTS], RANKS)
    run(["decode", "--campaign", campaign, *SMALL_PARTS], RANKS)
    check(not os.path.exists(torn), "a temporary file of a dead launch is left")
    check(os.path.exists(note), "a file that is not ours was removed")
    compare(answers(campaign), template.expected, "leftovers")


def every_length(folder):
    """inspect refuses a part cut at any length, and one with any byte altered, with a message and no crash."""
    template = Template(folder)
    chance = random.Random(5)
    for kind, path in (
        ("requests", os.path.join(template.campaign, "requests.h5")),
        ("states", parts(template.campaign, "prefill")[0]),
        ("results", parts(template.campaign, "results")[0]),
    ):
        run(["inspect", path])
        size = os.path.getsize(path)
        victim = os.path.join(folder, "victim.h5")
        lengths = {0, 1, 511, 512, 513, size - 1} | {chance.randrange(size) for _ in range(30)}
        for length in sorted(lengths):
            shutil.copyfile(path, victim)
            os.truncate(victim, length)
            output, _ = run(["inspect", victim], expect=INPUT)
            check("victim.h5" in output, f"{kind} cut at {length}: the message does not name the file\n{output}")
        for _ in range(30):
            shutil.copyfile(path, victim)
            place = chance.randrange(size)
            alter(place)(victim, None)
            output, _ = run(["inspect", victim], expect=INPUT)
            check("victim.h5" in output, f"{kind} altered at {place}: the message does not name the file\n{output}")


def lost_states(folder):
    """decode without some states, as when a part of prefill/ was deleted: prefill makes them again."""
    template = Template(folder)
    campaign = fresh_copy(template.prefilled, os.path.join(folder, "lost"))
    for path in parts(campaign, "prefill")[::2]:
        os.remove(path)
    run(["prefill", "--campaign", campaign, *SMALL_PARTS], RANKS)
    run(["decode", "--campaign", campaign, *SMALL_PARTS], RANKS)
    compare(answers(campaign), template.expected, "lost states")
    check(not glob.glob(os.path.join(campaign, "prefill", "*", "*.damaged")), "a whole part was set aside")


TESTS = {
    test.__name__: test for test in (results_parts, prefill_parts, requests_file, leftovers, every_length, lost_states)
}

if __name__ == "__main__":
    sys.exit(campaigns.main(TESTS))
