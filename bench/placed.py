#!/usr/bin/env python3
"""How evenly real ranks are busy in prefill, on the made-up trace that bench-balance simulates:

    placed.py BUILD_DIR MODEL [--ranks 2,4] [--requests 600] [--shrink 16] [--seed 1] [--step-tokens 64] [--json]

The requests of `bench-traffic --list` become chats of the same shape with their lengths divided by --shrink, so that a small model takes
them; agents' system prompts, histories and questions are made of words, the same ones where the trace shares text. Each number of ranks
prefills them in a campaign of its own with one thread a rank. "busy" is a rank's time but for waiting and moving data, as its
metrics file tells; where ranks and other programs wait for cores, that time counts too, so the tokens that each rank ran in its steps
(--trace) stand beside it. "filled" is the share of the steps' token budget that all ranks used. Needs h5py.
"""
import argparse
import glob
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import h5py

WORDS = "dog river king bread hope horse fox stone tree house story water people light night".split()
AWAY = ("waiting", "exchange")


def text(seed, tokens):
    return " ".join(random.Random(seed).choices(WORDS, k=max(1, tokens)))


def launch(*command, ranks=None):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if ranks:
        command = ("mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}")
    return done.stdout


def request_lines(options):
    """Of a conversation's turns each holds all that was said before."""
    trace = launch(options.build + "/bench/bench-traffic", "--requests", str(options.requests), "--seed", str(options.seed), "--list")
    said = {}
    for number, line in enumerate(trace.splitlines()):
        request = json.loads(line)
        chat = request["conversation"]
        messages, before = said.get(chat, ([], request["system_end"]))
        if not messages and request["system"] >= 0:
            system = text(f"system {request['system']}", request["system_end"] // options.shrink)
            messages = [{"role": "system", "content": system}]
        asked = text(f"{chat} asks {request['turn']}", (request["prompt"] - before) // options.shrink)
        messages = messages + [{"role": "user", "content": asked}]
        if request["prompt"] // options.shrink < options.longest:
            yield json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
                "model": "nocturne", "messages": messages, "thinking": {"type": "disabled"}, "temperature": 0,
                "max_tokens": 8}}) + "\n"
        answer = text(f"{chat} hears {request['turn']}", request["answer"] // options.shrink)
        said[chat] = (messages + [{"role": "assistant", "content": answer}], request["prompt"] + request["answer"])


def busy_seconds(campaign):
    seconds = []
    for path in sorted(glob.glob(campaign + "/metrics/launch-*/rank-*.h5")):
        with h5py.File(path) as file:
            parts = file.attrs["parts"]
            names = (parts.decode() if isinstance(parts, bytes) else str(parts)).split(",")
            sums = file["part_seconds"][-1]
            seconds.append(sum(value for name, value in zip(names, sums) if name.strip() not in AWAY))
    return seconds


def step_tokens(trace, ranks):
    """Of each rank: tokens of each of its steps."""
    counts = []
    for rank in range(ranks):
        with open(f"{trace}.{rank}", encoding="utf-8") as file:
            counts.append([event["args"]["tokens"] for event in json.load(file) if event.get("name") == "step"])
    return counts


def ratio_of(values):
    return max(values) * len(values) / sum(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("--ranks", default="2,4")
    for name, default in (("requests", 600), ("shrink", 16), ("seed", 1), ("step-tokens", 64), ("longest", 2000)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/requests.jsonl", "w", encoding="utf-8") as file:
            file.writelines(request_lines(options))
        if not options.json:
            print(f"{'ranks':>5} {'busy max/mean':>14} {'tokens max/mean':>16} {'steps':>6} {'filled':>7} {'prompt tokens':>14} {'computed':>9}")
        for ranks in map(int, options.ranks.split(",")):
            campaign = f"{folder}/ranks-{ranks}"
            launch(options.build + "/nocturne", "ingest", "--input", folder + "/requests.jsonl", "--model", options.model,
                   "--model-name", "nocturne", "--campaign", campaign)
            output = launch(options.build + "/nocturne", "prefill", "--campaign", campaign, "--threads", "1", "--step-tokens",
                            str(options.step_tokens), "--kv-memory", "1G", "--trace", campaign + ".trace", ranks=ranks)
            busy = busy_seconds(campaign)
            found = re.search(r"prefill: \d+ of \d+ done, (\d+) prompt tokens \([\d.]+/s\)(?: \+ (\d+) shared)?.* (\d+) s\n", output)
            if len(busy) != ranks or not found:
                sys.exit(f"prefill on {ranks} ranks left {len(busy)} metrics files and said:\n{output}")
            computed, shared = int(found[1]), int(found[2] or 0)
            steps = step_tokens(campaign + ".trace", ranks)
            tokens = [sum(rank) for rank in steps]
            filled = sum(tokens) / (max(map(len, steps)) * ranks * options.step_tokens)
            row = {"bench": "placed", "ranks": ranks, "busy_ratio": ratio_of(busy), "token_ratio": ratio_of(tokens), "busy": busy,
                   "tokens": tokens, "steps": max(map(len, steps)), "filled": filled, "prompt_tokens": computed + shared,
                   "computed": computed}
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print(f"{ranks:5} {row['busy_ratio']:14.4f} {row['token_ratio']:16.4f} {row['steps']:6} {100 * filled:6.1f}% "
                      f"{computed + shared:14} {computed:9}", flush=True)


if __name__ == "__main__":
    main()
