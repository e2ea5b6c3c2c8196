"""What answers must hold, on the embedded model: ends, stop strings, choices, log-probabilities against `score`, memory limits.

behaviour.py [names of tests]
"""

import json
import os
import sys
import tempfile

import h5py
import numpy as np

sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "faults"))
from campaigns import (  # noqa: E402
    INPUT, MODEL, USAGE, Failure, answers, chat, check, compare, parts, run, text_list, write_lines)

STOP, LENGTH = 0, 1
STORY = "Tell me a story about a fox."


class Campaign:
    """A campaign of `lines`, ready to run."""

    def __init__(self, folder, name, lines):
        self.folder = os.path.join(folder, name)
        write_lines(self.folder + ".jsonl", [json.dumps(line) for line in lines])
        run(["ingest", "--input", self.folder + ".jsonl", "--model", MODEL, "--campaign", self.folder])

    def run(self, *options, command="run", ranks=1, **more):
        return run([command, "--campaign", self.folder, "--threads", "1", *options], ranks, **more)[0]

    def answers(self):
        return answers(self.folder)

    def prompts(self):
        """custom_id -> prompt's token ids"""
        with h5py.File(os.path.join(self.folder, "requests.h5"), "r") as file:
            offsets, ids = file["token_offsets"][()], file["token_ids"][()]
            names = text_list(file, "custom_id")
        return {name: ids[int(a) : int(b)].tolist() for name, a, b in zip(names, offsets, offsets[1:])}


def first_choice(found, name):
    tokens, logprobs, _, _, text, finish, stop_index = found[name][2][0]
    return list(tokens), np.frombuffer(logprobs, np.float32), text, finish, stop_index


def ends(folder):
    """EOS, ignore_eos, max_tokens, stop ids and stop strings; the stopping token counts, its text does not."""
    greedy = {"temperature": 0, "max_tokens": 60}
    campaign = Campaign(folder, "ends", [
        chat("eos", "Hello!", **greedy),
        chat("past", "Hello!", ignore_eos=True, temperature=0, max_tokens=15),
        chat("short", "Define dog.", temperature=0, max_tokens=5),
        chat("full", "Define dog.", **greedy),
        chat("id", "Define dog.", stop_token_ids=[276], **greedy),
        chat("text", "Define dog.", stop=["genus Can", "nothing like it"], **greedy),
        chat("first", "Define dog.", stop=["member of", "a mem", "noun"], **greedy),
        chat("begin", "Define dog.", stop=["Do"], **greedy),
    ])
    campaign.run()
    found = campaign.answers()
    tokens, _, text, finish, _ = first_choice(found, "eos")
    check(text == "Hello! How can I help you today?" and tokens[-1] == 1 and finish == STOP, f"eos: {text!r} {tokens}")
    past = first_choice(found, "past")
    check(past[0][: len(tokens)] == tokens and len(past[0]) == 15 and past[3] == LENGTH, f"ignore_eos: {past}")
    full, _, full_text, _, _ = first_choice(found, "full")
    short = first_choice(found, "short")
    check(short[0] == full[:5] and short[3] == LENGTH and full_text.startswith(short[2]), f"max_tokens: {short}")
    by_id = first_choice(found, "id")
    check(by_id[0] == full[: full.index(276) + 1] and by_id[3:] == (STOP, 276), f"stop id: {by_id}")
    by_text = first_choice(found, "text")
    check(by_text[2] == full_text[: full_text.index("genus Can")] and by_text[3:] == (STOP, 0), f"stop string: {by_text}")
    check(full[: len(by_text[0])] == by_text[0] and len(by_text[0]) < len(full), f"stop string: tokens {by_text[0]}")
    first = first_choice(found, "first")
    check(first[2] == full_text[: full_text.index("noun")] and first[4] == 2, f"the earliest stop string wins: {first}")
    check(first_choice(found, "begin")[2] == "", "a stop string at the very start leaves no text")


def choices(folder):
    """n choices are different, the first ones do not depend on n, and a seed is that request's own key."""
    warm = {"temperature": 1.2, "max_tokens": 16}
    campaign = Campaign(folder, "choices", [chat("x", STORY, n=6, **warm), chat("greedy", STORY, n=3, temperature=0, max_tokens=16)])
    campaign.run(ranks=2)
    found = campaign.answers()
    check(len({choice[0] for choice in found["x"][2]}) >= 5, "six warm choices hardly differ")
    check(len({choice[0] for choice in found["greedy"][2]}) == 1, "greedy choices differ")
    fewer = Campaign(folder, "fewer", [chat("x", STORY, n=2, **warm)])
    fewer.run()
    check(fewer.answers()["x"][2] == found["x"][2][:2], "the first two choices depend on n")
    seeded = Campaign(folder, "seeded", [chat("x", STORY, n=2, seed=5, **warm)])
    seeded.run()
    check(seeded.answers()["x"][2] != fewer.answers()["x"][2], "a request's seed changes nothing")


def logprobs(folder):
    """Generated tokens have exactly the log-probabilities that `score` gives them after their prompt, in one pass."""
    long = " ".join(f"Define {word}." for word in ("dog", "river", "king", "bread", "hope") * 12)
    campaign = Campaign(folder, "logprobs", [
        chat("short", "Define river.", temperature=0, max_tokens=40, logprobs=True),
        chat("warm", STORY, temperature=1.3, top_k=40, max_tokens=40, logprobs=True, top_logprobs=5),
        chat("penalty", STORY, temperature=0.8, frequency_penalty=1.5, logit_bias={"261": -5}, max_tokens=40, logprobs=True),
        chat("long", long, temperature=0.5, max_tokens=40, logprobs=True),
    ])
    campaign.run("--all-layers", "--step-tokens", "50", ranks=2)
    found, prompts = campaign.answers(), campaign.prompts()
    texts = [json.dumps({"id": name, "token_ids": prompts[name] + list(map(int, first_choice(found, name)[0]))}) for name in prompts]
    output = campaign.folder + ".scores.h5"
    run(["score", "--model", MODEL, "--input", write_lines(campaign.folder + ".texts", texts), "--output", output], 3)
    with h5py.File(output, "r") as file:
        names, offsets, scores = text_list(file, "id"), file["offsets"][()].astype(int), file["logprobs"][()]
    check(names == list(prompts), f"score: ids {names}")
    for i, name in enumerate(names):
        ours, theirs = first_choice(found, name)[1], scores[offsets[i] + len(prompts[name]) : offsets[i + 1]]
        check(np.array_equal(ours, theirs), f"{name}: log-probabilities {ours} and by score {theirs}")
    tops = np.frombuffer(found["warm"][2][0][3], np.float32).reshape(-1, 5)
    check((np.diff(tops, axis=1) <= 0).all() and len(tops) == len(first_choice(found, "warm")[0]), "top_logprobs are not sorted")


def memory(folder):
    """Requests wait for key/value memory; one that can never fit is its own error record."""
    lines = [chat(f"q{i}", STORY, temperature=0, max_tokens=30, n=2) for i in range(12)]
    plenty = Campaign(folder, "plenty", lines)
    plenty.run()
    big = chat("big", " ".join([STORY] * 30), temperature=0, max_tokens=500, n=20)
    tight = Campaign(folder, "tight", [*lines[:5], big, *lines[5:]])
    tight.run("--kv-memory", "400K")
    found = tight.answers()
    check(found["big"][1] == "kv_memory_exceeded" and not found["big"][2], f"big: {found['big'][1]}")
    with h5py.File(parts(tight.folder, "results")[0], "r") as file:
        message = "".join(text_list(file, "error_message"))
    check("--kv-memory" in message and "max_tokens" in message and "MiB" in message, f"the message: {message}")
    del found["big"]
    compare(found, plenty.answers(), "little memory")
    staged = Campaign(folder, "staged", [*lines[:5], big, *lines[5:]])
    staged.run(command="prefill")
    staged.run("--kv-memory", "400K", command="decode", ranks=2)
    compare(staged.answers(), tight.answers(), "little memory in decode")


def missing_states(folder):
    """decode does what it can, then says how many states are missing."""
    campaign = Campaign(folder, "missing", [chat(f"q{i}", STORY, temperature=0, max_tokens=5) for i in range(4)])
    output = campaign.run(command="decode", ranks=2, expect=INPUT)
    check("4 of 4" in output and "nocturne prefill" in output, f"decode without prefill: {output}")
    campaign.run(command="prefill", ranks=2)
    victim = parts(campaign.folder, "prefill")[0]
    with h5py.File(victim, "r") as file:
        lost = len(file["request"])
    os.remove(victim)
    output = campaign.run(command="decode", ranks=2, expect=INPUT)
    check(f"{lost} of 4" in output, f"decode without a part: {output}")
    campaign.run(command="prefill")
    campaign.run(command="decode")
    check(len(campaign.answers()) == 4, "answers are missing")


def command_line(folder):
    """Usage errors: one message, code 2, whatever the number of ranks."""
    campaign = Campaign(folder, "usage", [chat("q", STORY, temperature=0, max_tokens=5)])
    output = campaign.run("--step-tokens", "7", ranks=3, expect=USAGE)
    check(output.count("error:") == 1 and "--all-layers" in output, f"--step-tokens 7: {output}")
    for ranks, arguments, word in ((3, ["prefil"], "did you mean 'prefill'"), (2, ["run"], "--campaign"),
            (None, ["run", "--campaign", campaign.folder, "--supernode", "3"], "supernode"), (None, [], "help")):
        output = run(arguments, ranks, expect=USAGE)[0]
        check(output.count("error:") == 1 and word in output, f"{arguments}: {output}")
    for command in ("ingest", "prefill", "decode", "run", "export", "status", "score", "topo", "inspect"):
        output = run([command, "--help"], 2)[0]
        check(output.count(f"usage: nocturne {command}") == 1 and "--help" in output, f"{command} --help: {output}")
    output = run(["--version"], None)[0]
    check("nocturne" in output and "hdf5" in output, f"--version: {output}")


TESTS = (ends, choices, logprobs, memory, missing_states, command_line)


def main():
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    wanted = sys.argv[1:]
    failures = 0
    for test in TESTS:
        if wanted and test.__name__ not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(folder)
                print("ok", test.__name__, flush=True)
            except Failure as failure:
                failures += 1
                print("FAIL", test.__name__, failure, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
