#!/usr/bin/env python3
"""A small campaign of the trained model on the emulated CUDA backend: the same bits whatever the layout.

    campaign.py NOCTURNE_EMULATED

Runs in one launch and in phases, on one rank and two, in batches of one and more; every answer's tokens and log-probabilities must be
equal. Two ranks on one device must be refused by name, and a device's numbers must be near the CPU's.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["NOCTURNE_SOURCE"])
PROGRAM = os.environ["NOCTURNE_PROGRAM"]
EMULATED = sys.argv[1]
MODEL = SOURCE / "inputs/nano"
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n"]
MEMORY = ["--kv-memory", "32M"]  # the emulated device's memory is the machine's


def write_requests(path):
    """The first of the example requests, cut short, with what sampling on a device has to get right."""
    changes = [
        {},
        {"n": 2, "temperature": 0.7},
        {"temperature": 1.0, "top_p": 0.9, "frequency_penalty": 0.5},
        {"logit_bias": {"17": 5}, "temperature": 0.9},
        {"n": 2, "temperature": 1.0, "top_p": 0.9, "response_format": {"type": "regex", "regex": "[A-C][0-9]{2}(-|/)x+"}},
    ]
    with open(path, "w", encoding="utf-8") as file, open(SOURCE / "inputs/requests.jsonl", encoding="utf-8") as lines:
        for change, line in zip(changes, lines):
            request = json.loads(line)
            request["body"].update({"max_tokens": 6, "logprobs": True, "top_logprobs": 2} | change)
            request["body"].pop("max_completion_tokens", None)
            file.write(json.dumps(request) + "\n")


def call(command, **environment):
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def run(command, **environment):
    done = call([str(word) for word in command], **environment)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")


def answers(folder, requests, *runs, **environment):
    """What export says of a fresh campaign after these runs, without its times."""
    run([PROGRAM, "ingest", "--input", requests, "--model", MODEL, "--campaign", folder])
    for words in runs:
        run(words + ["--campaign", folder], **environment)
    run([PROGRAM, "export", "--campaign", folder])
    found = {}
    with open(folder / "results.jsonl", encoding="utf-8") as lines:
        for line in lines:
            answer = json.loads(line)
            body = answer["response"]["body"]
            found[answer["custom_id"]] = [body["choices"], body["usage"]]
    return found


def first_logprobs(found):
    return {name: choices[0]["logprobs"]["content"][0]["logprob"] for name, (choices, _) in found.items()}


def main():
    with tempfile.TemporaryDirectory(prefix="nocturne-emulated-") as place:
        place = pathlib.Path(place)
        requests = place / "requests.jsonl"
        write_requests(requests)
        two = MPIRUN + ["2", EMULATED]
        layouts = {
            "one rank": answers(place / "one", requests, [EMULATED, "run", "--batch", "4", *MEMORY]),
            "one by one": answers(place / "single", requests, [EMULATED, "run", "--batch", "1", *MEMORY]),
            "two ranks, in phases": answers(
                place / "two",
                requests,
                two + ["prefill", "--step-tokens", "128", *MEMORY],
                two + ["decode", "--batch", "2", *MEMORY],
                SIMT_DEVICES="2",
            ),
        }
        expected = layouts["one rank"]
        for name, found in layouts.items():
            if len(found) != 5 or found != expected:
                sys.exit(f"{name}: other answers than on one rank\n{found}\n{expected}")
        for choice in list(expected.values())[4][0]:
            if not re.fullmatch("[A-C]([0-9]?|[0-9]{2}([-/]x*)?)", choice["message"]["content"]):
                sys.exit(f"an answer left its pattern: {choice['message']['content']!r}")
        on_cpu = first_logprobs(answers(place / "cpu", requests, [PROGRAM, "run", "--backend", "cpu", *MEMORY]))
        for name, value in first_logprobs(expected).items():
            if not math.isclose(value, on_cpu[name], rel_tol=0.05, abs_tol=0.01):
                sys.exit(f"{name}: the first token's log-probability is {value}, on the CPU {on_cpu[name]}")
        run([PROGRAM, "ingest", "--input", requests, "--model", MODEL, "--campaign", place / "refused"])
        refused = call(two + ["run", "--campaign", str(place / "refused"), "--backend", "cuda", *MEMORY], SIMT_DEVICES="1")
        if refused.returncode == 0 or "rank 0 and rank 1" not in refused.stderr + refused.stdout:
            sys.exit(f"two ranks on one device were not refused by name:\n{refused.stderr}")
    print("equal on one rank, one by one and on two ranks in phases; near the CPU; two ranks on one device refused")


main()
