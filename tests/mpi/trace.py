"""--trace: each rank's file is JSON whose events follow each other without gaps and fill the steps; and the lines at the end of a
phase that say where its time went.
"""

import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "faults"))
from campaigns import IO, MODEL, Failure, Launch, chat, check, run, write_lines  # noqa: E402

PARTS = {"scheduling", "embed", "attention products", "index choice", "attention", "mixes", "router", "shared expert",
         "experts", "engram", "logits", "sampling", "files"}
BETWEEN_RANKS = {"exchange", "waiting"}
LINES = [json.dumps(chat(f"r{i}", "Tell me a story about a fox. " * (i + 1), max_tokens=6)) for i in range(8)]


def check_trace(path, rank, ranks):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    parts = [event for event in events if event["cat"] == "part"]
    steps = [event for event in events if event["cat"] == "step"]
    names = {event["name"] for event in parts}
    check(PARTS <= names, f"{path} lacks {PARTS - names}")
    check(ranks == 1 or BETWEEN_RANKS <= names, f"{path} lacks {BETWEEN_RANKS - names}")
    check(names <= PARTS | BETWEEN_RANKS | {"other"}, f"{path} has {names}")
    check({event["pid"] for event in events} == {rank}, f"{path} is not of rank {rank}")
    check({event["ph"] for event in events} == {"X"}, f"{path} has other events")
    check([event["args"]["step"] for event in steps] == list(range(1, len(steps) + 1)), f"steps of {path}")
    at = 0.0
    for event in parts:  # of a stopwatch that always runs; times are in microseconds with three decimals
        check(abs(event["ts"] - at) < 0.01, f"{path}: a gap before {event}")
        at = event["ts"] + event["dur"]
    for event in steps:
        inside = sum(p["dur"] for p in parts if event["ts"] - 0.01 <= p["ts"] < event["ts"] + event["dur"] - 0.01)
        check(abs(inside - event["dur"]) < 1, f"{path}: parts of step {event['args']['step']} last {inside}")
    return sum(event["args"]["tokens"] for event in steps)


def check_lines(text, ranks):
    shares = re.search(r"run: time by part: (.*)", text)
    check(shares is not None, f"no line on the parts of the time:\n{text}")
    total = sum(float(share) for share in re.findall(r"([\d.]+)%", shares.group(1)))
    check(99 < total < 101, f"the parts add up to {total}%")
    between = re.search(r"run: between ranks: exchange [\d.]+ s .*; waiting [\d.]+ s", text)
    check((between is not None) == (ranks > 1), f"the line on what is between ranks:\n{text}")


def trial(folder, ranks):
    campaign, trace = os.path.join(folder, f"campaign-{ranks}"), os.path.join(folder, f"trace-{ranks}.json")
    run(["ingest", "--input", write_lines(campaign + ".jsonl", LINES), "--model", MODEL, "--campaign", campaign])
    launch = Launch(["run", "--campaign", campaign, "--threads", "1", "--step-tokens", "64", "--trace", trace], ranks)
    code = launch.wait()
    check(code == 0, f"run ended with {code}:\n{launch.output()}")
    paths = [trace] if ranks == 1 else [f"{trace}.{rank}" for rank in range(ranks)]
    tokens = sum(check_trace(path, rank, ranks) for rank, path in enumerate(paths))
    found = re.search(r"(\d+) prompt tokens.*?(\d+) generated", launch.output())
    # The first token of an answer comes from its prompt's last step, the others from steps of their own.
    expected = int(found.group(1)) + int(found.group(2)) - len(LINES)
    check(tokens == expected, f"the steps of the trace have {tokens} tokens, expected {expected}")
    check_lines(launch.output(), ranks)
    print(f"ok {ranks} ranks", flush=True)


def refusal(folder):
    """A trace that cannot be written ends the run before its work."""
    campaign = os.path.join(folder, "refused")
    run(["ingest", "--input", write_lines(campaign + ".jsonl", LINES), "--model", MODEL, "--campaign", campaign])
    launch = Launch(["run", "--campaign", campaign, "--trace", os.path.join(folder, "no", "trace")], 2)
    code = launch.wait()
    check(code == IO and "cannot write the trace" in launch.output(), f"code {code}:\n{launch.output()}")
    print("ok refusal", flush=True)


def main():
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory() as folder:
        try:
            for ranks in (1, 3):
                trial(folder, ranks)
            refusal(folder)
        except Failure as failure:
            print("FAIL", failure)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
