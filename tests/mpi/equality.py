"""The same campaign in many layouts: tokens, log-probabilities and texts are bit-identical by custom_id.

    equality.py ranks|limits|staged|families
"""

import json
import os
import random
import re
import sys
import tempfile

import h5py

sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "faults"))
from campaigns import (  # noqa: E402
    MODEL,
    SOURCE,
    Failure,
    answers,
    chat,
    check,
    compare,
    lost_and_doubled,
    run,
    write_lines,
)


def requests():
    """The examples, long prompts that are cut into chunks, and every kind of sampling."""
    with open(os.path.join(SOURCE, "inputs", "requests.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file][:12]
    for line in lines:
        line["body"]["max_tokens"] = min(line["body"].get("max_tokens", 24), 24)
    words = ["dog", "river", "king", "bread", "hope", "horse", "fox", "stone", "tree", "house"]
    for i, count in enumerate((40, 90, 200)):
        text = " ".join(f"Define {words[(i + k) % len(words)]}." for k in range(count))
        lines.append(chat(f"long-{count}", text, temperature=0.8, max_tokens=12, logprobs=True, top_logprobs=2))
    story = "Tell me a story about a fox."
    lines += [
        chat("choices", story, temperature=1.1, n=5, max_tokens=20, logprobs=True, top_logprobs=4),
        chat("choices-long", " ".join([story] * 20), temperature=0.9, n=3, seed=7, max_tokens=20),
        chat("narrow", story, temperature=0.7, top_k=5, top_p=0.8, min_p=0.05, max_tokens=20),
        chat("penalties", story, temperature=0.6, presence_penalty=0.7, frequency_penalty=0.4, max_tokens=30),
        chat("bias", story, temperature=0, logit_bias={"16": -100, "1044": 3}, max_tokens=30),
        chat("stops", story, temperature=0.9, seed=3, stop=["the", "fox and"], max_tokens=30),
        chat("ids", story, temperature=0.9, seed=3, stop_token_ids=[261], max_tokens=30),
        chat("one-token", "Hello!", temperature=0, max_tokens=1, logprobs=True, top_logprobs=20),
        chat("past-the-end", "Hello!", temperature=0, max_tokens=40, ignore_eos=True),
    ]
    return lines


def family_requests():
    """A giant family, whose answers end at once though 200 tokens are allowed, and two with short answers of full length: where a rank
    has most of the first it is soon without work. Some members are equal, or begin another."""
    end = {"1": 100}
    words = ["dog", "river", "king", "bread", "hope", "horse", "fox", "stone", "tree", "house"]
    begin = " ".join(f"Define {word}." for word in words * 4)
    lines = []
    for i in range(16):
        lines.append(chat(f"giant-{i}", f"{begin} Tell me of {i % 12}.", temperature=0, max_tokens=200, logit_bias=end))
    for i in range(30):
        text = f"Tell me a story about a {words[i % 2]}. " * 6 + " ".join(words[: i // 3])
        lines.append(chat(f"small-{i}", text, temperature=0.9, max_tokens=24, ignore_eos=True))
    lines.append(chat("straggler", f"{begin} Go on.", temperature=0.8, max_tokens=120, ignore_eos=True, n=2))
    return lines


class Campaigns:
    def __init__(self, folder, lines):
        self.folder = folder
        self.made = 0
        self.lines = [json.dumps(line) for line in lines]
        self.expected = self.outcome([("run", 1, ["--threads", "1"])])
        check(len(self.expected) == len(self.lines), "the reference run lacks answers")
        for custom_id, (_, code, choices) in self.expected.items():
            check(not code and choices, f"{custom_id} failed in the reference run: {code}")

    def outcome(self, launches, shuffle=None):
        """Answers of a fresh campaign after `launches`: (command, ranks, options)."""
        self.made += 1
        lines = list(self.lines)
        if shuffle is not None:
            random.Random(shuffle).shuffle(lines)
        campaign = self.campaign = os.path.join(self.folder, f"campaign-{self.made}")
        input_file = write_lines(campaign + ".jsonl", lines)
        run(["ingest", "--input", input_file, "--model", MODEL, "--campaign", campaign])
        self.output = ""
        for command, ranks, options in launches:
            self.output += run([command, "--campaign", campaign, *options], ranks)[0]
        return answers(campaign)

    def same(self, launches, shuffle=None):
        what = "; ".join(f"{command} on {ranks}: {' '.join(options)}" for command, ranks, options in launches)
        what += "" if shuffle is None else f"; input order {shuffle}"
        compare(self.outcome(launches, shuffle), self.expected, what)
        print("ok", what, flush=True)


def ranks(campaigns):
    """Ranks, threads, supernodes and input order."""
    for count in (2, 3, 5, 8):
        campaigns.same([("run", count, ["--threads", "1"])], shuffle=count)
    campaigns.same([("run", 1, ["--threads", "2"])])
    campaigns.same([("run", 2, ["--threads", "2"])], shuffle=1)
    campaigns.same([("run", 4, ["--threads", "1", "--supernode", "2"])], shuffle=9)


def limits(campaigns):
    """Batch limits, token budgets, key/value memory and where weights lie."""
    for batch in (1, 8, 64):
        campaigns.same([("run", 2, ["--threads", "1", "--batch", str(batch)])], shuffle=batch)
    for tokens in (32, 77, 2048):
        campaigns.same([("run", 1, ["--threads", "1", "--step-tokens", str(tokens)])], shuffle=tokens)
    campaigns.same([("run", 2, ["--threads", "1", "--kv-memory", "3M"])])
    campaigns.same([("run", 2, ["--threads", "1", "--mapped-weights"])])


def staged(campaigns):
    """Prefill and decode as launches of their own, on other ranks and limits."""
    for prefill, decode, batch, tokens in ((1, 1, 64, 512), (3, 2, 8, 100), (2, 5, 1, 33)):
        campaigns.same(
            [
                ("prefill", prefill, ["--threads", "1", "--step-tokens", str(tokens)]),
                ("decode", decode, ["--threads", "1", "--batch", str(batch)]),
            ],
            shuffle=batch,
        )


def tokens_of(campaign):
    """Tokens of all prompts, those of their trie, and those that the last launch computed."""
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        ids, offsets = file["token_ids"][:], file["token_offsets"][:]
    prompts = sorted(ids[begin:end].tolist() for begin, end in zip(offsets, offsets[1:]))
    shared = [len(os.path.commonprefix(pair)) for pair in zip(prompts, prompts[1:])]
    with open(os.path.join(campaign, "progress.json"), encoding="utf-8") as file:
        return len(ids), len(ids) - sum(shared), json.load(file)["prompt_tokens"]


def families(campaigns):
    """Ranks that share prompts' beginnings, and give work away: all requests are there once, whoever ran them."""
    moved = 0
    for launches in (
        [("run", 1, ["--batch", "64"])],
        [("run", 2, ["--batch", "2"])],
        [("run", 4, ["--batch", "2"])],
        [("prefill", 4, ["--step-tokens", "64"]), ("decode", 2, ["--batch", "2"])],
    ):
        launches = [(command, ranks, ["--threads", "1", "--verbose", *options]) for command, ranks, options in launches]
        campaigns.same(launches, shuffle=7)
        check(lost_and_doubled(campaigns.campaign) == (0, 0), "requests were lost or doubled")
        plan = re.search(r"plan: of (\d+) prompt tokens (\d+) are shared", campaigns.output)
        check(plan and int(plan[2]) > int(plan[1]) / 2, f"no plan that shares beginnings:\n{campaigns.output}")
        if launches[0][:2] == ("run", 1):
            every, unique, computed = tokens_of(campaigns.campaign)
            text = f"of {every} prompt tokens the trie has {unique}, and {computed} were computed"
            check(unique <= computed < every / 4, text)  # short beginnings, below 32 tokens, are not worth a prefix
            print("ok", text, flush=True)
        moved += sum(int(count) for count in re.findall(r"plan: (\d+) requests moved", campaigns.output))
    check(moved > 0, "no request was moved to a rank without work")
    print("ok", moved, "requests moved", flush=True)


def main():
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # the tests' ranks share cores
    suites = {"ranks": ranks, "limits": limits, "staged": staged, "families": families}
    with tempfile.TemporaryDirectory() as folder:
        try:
            name = sys.argv[1]
            suites[name](Campaigns(folder, family_requests() if name == "families" else requests()))
        except Failure as failure:
            print("FAIL", failure)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
