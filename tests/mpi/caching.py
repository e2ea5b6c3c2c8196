"""The prefix cache and shared beginnings in whole campaigns: answers are bit-identical to those of a run without, whatever is
hit, and tokens that were not computed are told.

    caching.py [TEST ...]
"""

import json
import os
import random
import shutil
import signal
import sys

sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "faults"))
sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "mpi"))
import campaigns  # noqa: E402
from campaigns import (  # noqa: E402
    CONFLICT, DONE, STOPPED, USAGE, Launch, answers, chat, check, compare, ingest, parts, run, write_lines)

from images import LARGE, LOWER, TALL, WIDE, image, show  # noqa: E402

WORDS = "dog river king bread hope horse fox stone tree house water night light hand road song".split()
BLOCK, WINDOW, EXACT = 64, 32, 7 * 31  # of the cache; of the embedded model; tokens that exact replay runs again there


def words(seed, count):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def families(seed, prefixes=3, each=6, length=420, **options):
    """Prompts that share long beginnings, some of them with beginnings of their own; lengths of ends differ."""
    lines = []
    for p in range(prefixes):
        shared = words(f"{seed}-{p}", length + 37 * p)
        for i in range(each):
            branch = words(f"{seed}-{p}-{i % 2}", 60) if i % 3 else ""
            rest = words(f"{seed}-{p}-{i}", 1 + 7 * i)
            sampling = {"temperature": 0.8 if i % 2 else 0, "max_tokens": 10, "logprobs": True, "top_logprobs": 2}
            lines.append(chat(f"{p}-{i}", f"{shared} {branch} {rest}", **{**sampling, **options}))
    lines.append(chat("short", "Define dog.", temperature=0, max_tokens=10))
    lines.append(chat("same-1", words(seed, 300), temperature=0, max_tokens=10))
    lines.append(chat("same-2", words(seed, 300), temperature=0.9, max_tokens=10, n=3))
    return lines


def make(folder, name, lines, **options):
    campaign = os.path.join(folder, name)
    ingest(campaign, write_lines(campaign + ".jsonl", [json.dumps(line) for line in lines]), **options)
    return campaign


def go(campaign, *options, ranks=1, command="run", **expected):
    return run([command, "--campaign", campaign, "--threads", "1", *options], ranks, **expected)[0]


def progress(campaign):
    with open(os.path.join(campaign, "progress.json"), encoding="utf-8") as file:
        return json.load(file)


def cached_tokens(campaign):
    import h5py

    found = {}
    for path in parts(campaign, "results"):
        with h5py.File(path, "r") as file:
            found.update(zip((int(r) for r in file["request"][()]), (int(c) for c in file["cached_tokens"][()])))
    return found


def reference(folder, lines, **options):
    """Answers of the requests, each prompt run by itself."""
    campaign = make(folder, "reference", lines, **options)
    go(campaign, "--no-sharing")
    return answers(campaign)


def warm(folder):
    """A second campaign hits what the first has kept: same bits on other ranks, in chunks of other lengths, staged or not."""
    lines, store = families("warm"), os.path.join(folder, "store")
    expected = reference(folder, lines)
    first = make(folder, "first", lines)
    go(first, "--cache", store)
    compare(answers(first), expected, "with an empty cache")
    trials = [
        ([("run", 1, [])], 1),
        ([("run", 2, ["--step-tokens", "77"])], 2),
        ([("run", 3, ["--step-tokens", "33", "--batch", "3"])], 3),
        ([("prefill", 2, ["--step-tokens", "100"]), ("decode", 1, [])], 4),
        ([("run", 1, ["--kv-memory", "3M"])], 5),
    ]
    for commands, seed in trials:
        shuffled = list(lines)
        random.Random(seed).shuffle(shuffled)
        campaign = make(folder, f"again-{seed}", shuffled)
        for command, ranks, options in commands:
            go(campaign, "--cache", store, *options, command=command, ranks=ranks)
            if command != "decode":
                saved = progress(campaign)
                check(saved["cached_tokens"] > 0, f"{commands}: nothing was hit: {saved}")
                check(0 < saved["replayed_tokens"] < saved["cached_tokens"], f"{commands}: {saved}")
        compare(answers(campaign), expected, f"with a warm cache: {commands}")


def scarce(folder):
    """Where key/value memory is scarce, prompts wait until what they share has room, rather than that each runs it anew; a request
    that is refused does not keep the others from sharing."""
    lines, refused = [], []
    for f in range(4):
        begin = words(f"scarce {f}", 380)
        for i in range(5):
            lines.append(chat(f"{f}-{i}", f"{begin} {words(f'{f} {i}', 10 + 5 * i)}", temperature=0,
                              max_tokens=20 + 13 * ((f + i) % 5), ignore_eos=True))
        refused.append(chat(f"{f}-refused", f"{begin} king", max_tokens=64, n=100))
    expected = reference(folder, lines)
    for memory, more in (("1500K", []), ("3M", refused)):
        campaign = make(folder, memory, [*lines, *more])
        go(campaign, "--kv-memory", memory)
        found = answers(campaign)
        for line in more:
            check(found.pop(line["custom_id"])[1] == "kv_memory_exceeded", f"{line['custom_id']} was not refused")
        compare(found, expected, f"with {memory}")
        shared = progress(campaign)["shared_tokens"]
        check(shared > 4 * 4 * 380, f"with {memory} only {shared} tokens were shared")


def edges(folder):
    """Prompts whose common beginnings end at and beside the edges of blocks, groups, windows and the replayed range."""
    base = words("edges", 700).split()
    first = make(folder, "first", [chat("whole", " ".join(base), temperature=0, max_tokens=2)])
    store = os.path.join(folder, "store")
    go(first, "--cache", store)
    lines = []
    for near in (BLOCK, EXACT, EXACT + BLOCK, EXACT + WINDOW, 320, 384, 512, 576):
        for by in range(-3, 4):
            cut = base[: near + by]
            lines.append(chat(f"{near}{by:+}", " ".join(cut), temperature=0, max_tokens=4, logprobs=True))
            lines.append(chat(f"{near}{by:+}-on", " ".join([*cut, "queen", *cut[:20]]), temperature=0, max_tokens=4))
    expected = reference(folder, lines)
    campaign = make(folder, "hits", lines)
    go(campaign, "--cache", store, ranks=2)
    compare(answers(campaign), expected, "hits around edges")
    check(progress(campaign)["cached_tokens"] > 0, "nothing was hit")


def turns(folder):
    """A chat's next turn goes on from its first prompt and answer; agents' and chats' answers are kept."""
    store = os.path.join(folder, "store")
    question = words("turns", 450)
    first = make(folder, "first", [chat("turn", question, temperature=0, max_tokens=150, ignore_eos=True)])
    go(first, "--cache", store)
    run(["export", "--campaign", first])
    with open(os.path.join(first, "results.jsonl"), encoding="utf-8") as file:
        answer = json.loads(file.readline())["response"]["body"]["choices"][0]["message"]["content"]
    second = chat("turn", question, temperature=0, max_tokens=8)
    second["body"]["messages"] += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    expected = reference(folder, [second])
    for number in range(2):
        campaign = make(folder, f"second-{number}", [second])
        go(campaign, "--cache", store)
        compare(answers(campaign), expected, "the second turn")
        found = list(cached_tokens(campaign).values())[0]
        check(found >= 448, f"the second turn took {found} tokens over, its first prompt has more than 450")


def bounded(folder):
    """Bounded replay runs less, writes nothing that it has made into the cache, and is part of a campaign's identity."""
    lines, store = families("bounded"), os.path.join(folder, "store")
    expected = reference(folder, lines)
    first = make(folder, "first", lines[::2])
    go(first, "--cache", store)
    exact = make(folder, "exact", lines)
    copy = os.path.join(folder, "copy")
    shutil.copytree(store, copy)
    go(exact, "--cache", copy)
    near = make(folder, "near", lines)
    go(near, "--cache", store, "--replay", "bounded=32")
    check(progress(near)["replayed_tokens"] < progress(exact)["replayed_tokens"], "bounded replay ran as much as exact")
    found = answers(near)
    check(found.keys() == expected.keys() and all(not code for _, code, _ in found.values()), "answers are missing")
    check(found != expected, "bounded replay of one window changed nothing: it is not tested")
    go(near, "--cache", store, expect=CONFLICT)
    after = make(folder, "after", lines)
    go(after, "--cache", store)
    compare(answers(after), expected, "exact, after a bounded run with the same cache")
    for wrong in ("bounded=0", "bounded=x", "nearly"):
        go(after, "--cache", store, "--replay", wrong, expect=USAGE)
    go(after, "--replay", "bounded", expect=USAGE)


def bounded_states(folder):
    """Answers that go on from saved states made with bounded replay are not kept either; with exact replay they are."""
    past = [{"role": "user", "content": words("past", 300)}, {"role": "assistant", "content": words("answer", 40)}]
    opening = chat("opening", "", temperature=0, max_tokens=2)
    opening["body"]["messages"] = past
    later = chat("later", "", temperature=0, max_tokens=150, ignore_eos=True)
    later["body"]["messages"] = [*past, {"role": "user", "content": words("later", 200)}]
    store = os.path.join(folder, "store")
    go(make(folder, "opening", [opening]), "--cache", store)
    for replay, is_kept in (("bounded=2", False), ("exact", True)):
        campaign = make(folder, replay, [later])
        go(campaign, "--cache", store, "--replay", replay, command="prefill")
        check(progress(campaign)["cached_tokens"] > 0, "nothing was hit")
        told = go(campaign, "--cache", store, "--replay", replay, command="decode")
        check((", 0 kept," not in told) == is_kept, f"{replay}: what is kept of an answer is wrong: {told}")


def stopped(folder):
    """Launches that are stopped and killed with a cache go on to the same answers."""
    lines, store = families("stopped", each=8), os.path.join(folder, "store")
    expected = reference(folder, lines)
    campaign = make(folder, "campaign", lines)
    for kind in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        launch = Launch(["run", "--campaign", campaign, "--threads", "1", "--cache", store, "--part-seconds", "0",
                         "--step-tokens", "64", "--batch", "4"], 2)
        launch.wait_for_text("to do")
        try:
            launch.process.wait(timeout=1.2)
        except Exception:
            for pid in launch.rank_processes():
                os.kill(pid, kind)
        code = launch.wait()
        check(kind == signal.SIGKILL or code in (DONE, STOPPED), launch.output())
    go(campaign, "--cache", store, ranks=2)
    compare(answers(campaign), expected, "after stops and kills")


def other_kernels(folder):
    """Rows of other kernels and of another checkpoint are no hits."""
    lines, store = families("kernels", prefixes=1), os.path.join(folder, "store")
    first = make(folder, "first", lines)
    go(first, "--cache", store, "--cpu-kernels", "avx2")
    second = make(folder, "second", lines)
    go(second, "--cache", store, "--cpu-kernels", "generic")
    check(progress(second)["cached_tokens"] == 0, "rows of other kernels were used")


def pictures(folder):
    """Images in what is shared, hit and replayed: the same ones are hits, others at the same place are not."""
    long, more = words("pictures", 260), words("more", 120)
    lines = []
    for name, first in (("large", LARGE), ("lower", LOWER)):
        for i in range(3):
            lines.append(show(f"{name}-{i}", long, image(first), more, image(WIDE if i else TALL), words(f"end {i}", 3 + i)))
    lines.append(show("image-last", long, image(LARGE)))
    lines.append(show("text-only", long + " " + more))

    def campaign_of(name, *options, ranks=1):
        campaign = make(folder, name, lines)
        run(["vision", "--campaign", campaign, "--threads", "1"], 1)
        go(campaign, *options, ranks=ranks)
        return campaign

    store = os.path.join(folder, "store")
    expected = answers(campaign_of("reference", "--no-sharing"))
    compare(answers(campaign_of("shared")), expected, "images in shared beginnings")
    for number, ranks in enumerate((1, 1, 2)):
        campaign = campaign_of(f"cached-{number}", "--cache", store, "--step-tokens", "90", ranks=ranks)
        compare(answers(campaign), expected, f"images and the cache, launch {number}")
        check(number == 0 or progress(campaign)["cached_tokens"] > 0, "nothing was hit")
    told = cached_tokens(campaign)
    check(told[lines.index(next(line for line in lines if line["custom_id"] == "lower-0"))] > 0, f"no hit with images: {told}")


TESTS = {test.__name__: test for test in (warm, scarce, edges, turns, pictures, bounded, bounded_states, stopped, other_kernels)}

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # the tests' ranks share cores
    sys.exit(campaigns.main(TESTS))
