"""Runs the vectors of tests/data/grammar through `nocturne grammar`: texts, refusals and masks bit for bit."""

import json
import os
import subprocess
import sys

SOURCE = os.environ["NOCTURNE_SOURCE"]
FOLDER = os.path.join(SOURCE, "tests/data/grammar")
TOKENIZER = os.path.join(SOURCE, "tests/data/recipe")
# The keys of a map are all undeclared, and only declared keys have an order: its case of keys in another order, which was made like
# those of other objects, must be accepted (both peers and the validator do).
NO_ORDER = {"rw_tf_variables"}
failures = []


def lines_of(name):
    with open(os.path.join(FOLDER, name + ".jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def run(lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    command = [os.environ["NOCTURNE_PROGRAM"], "grammar", "--tokenizer", TOKENIZER, "--input", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=250)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if done.returncode or len(answers) != len(lines):
        sys.exit(f"exit code {done.returncode}, {len(answers)} of {len(lines)} lines: {done.stderr}")
    return list(zip(lines, answers))


def check(holds, *what):
    if not holds:
        failures.append(" ".join(str(part) for part in what))


def check_texts(lines):
    for line, answer in run(lines):
        check("error" not in answer, line["name"], answer.get("error"))
        for kind, wanted in (("accept", True), ("reject", False)):
            for text, fits in zip(line[kind], answer.get(kind, [])):
                check(fits == wanted, line["name"], "should", kind, ascii(text))


def schema_lines():
    lines = lines_of("schema_cases")
    for line in lines:
        for policy in line.get("policy", []):
            unordered = policy["topic"] == "key order" and line["name"] in NO_ORDER
            wanted = "accept" if unordered else policy["recommended"]
            if wanted != "either":
                line[wanted].append(policy["text"])
    return lines


def check_refusals():
    for line, answer in run(lines_of("unsupported")):
        check("error" in answer or line["may_support"], "not refused:", line["reason"], line["spec"])


def check_masks():
    lines = lines_of("mask_cases")
    for line, answer in run([dict(line, list_allowed=True) for line in lines]):
        check("error" not in answer, line["name"], answer.get("error"))
        if "error" in answer:
            continue
        allowed = set(answer.pop("allowed"))
        check(set(answer) == {"name", "allowed_count", "mask_sha256", "eos_allowed"}, line["name"], "members", set(answer))
        check(len(allowed) == answer["allowed_count"], line["name"], "the list and the count of allowed tokens differ")
        # Where the peers differ, the samples are of what both allow and what both forbid.
        check(allowed.issuperset(line["allowed_sample"]), line["name"], "forbids what it must allow")
        check(allowed.isdisjoint(line["forbidden_sample"]), line["name"], "allows what it must forbid")
        wanted = line.get("mask_sha256") or line.get("recommended_sha256")
        low, high = line.get("allowed_range", [0, 0])
        fits = answer["mask_sha256"] == wanted if wanted else low <= answer["allowed_count"] <= high
        check(fits, line["name"], "mask of", answer["allowed_count"])
        check(answer["eos_allowed"] == line["eos_allowed"] or not wanted, line["name"], "end of the answer")
    return len(lines)


check_texts(schema_lines())
check_texts([dict(line, name=line["pattern"]) for line in lines_of("regex_cases")])
check_texts(lines_of("tool_cases"))
check_refusals()
check_masks()
print("\n".join(failures) or "all vectors hold")
sys.exit(bool(failures))
