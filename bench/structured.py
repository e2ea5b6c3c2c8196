#!/usr/bin/env python3
"""What holding answers to schemas costs: the decode phase of a campaign with free answers and of one with held answers.

    python3 bench/structured.py BUILD_DIR CHECKPOINT [--requests 64] [--prompt 64] [--generate 96] [--batch 32] [--threads 1]
                                [--rounds 3] [--json]

Answers are long: the schemas, several, allow none to end before. Sets: "objects" (arrays of objects with strings, numbers and words), "compact"
(objects without blanks), "strings" (long bound strings), "calls" (a tool that must be called, with a text) and "counted" (with a text of 4,000
characters at least, raw as it is in a call). Times are processor seconds of the whole decode command, the best of --rounds, in turn with the free campaign. Since a schema
stands in its prompt, the forward passes of the sets differ; what holding costs is therefore told apart: the seconds of drawing, masks and scheduling
beyond those of the free campaign, in percent of all its seconds. A checkpoint without a tokenizer is given that of inputs/nano. Only the standard library is
needed.
"""
import argparse
import json
import os
import random
import re
import sys
import tempfile

import ranks

WORDS = "dog river king bread hope horse fox stone tree house story water people light night".split()


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def many(item):
    return {"type": "array", "items": item, "minItems": 400}


def objects(i):
    return many(closed(**{f"name{i % 8}": {"type": "string", "maxLength": 20 + i % 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
                          "kind": {"enum": WORDS[i % 8 :]}, "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,9}$"}, "maxItems": 3}}))


def strings(i):
    return closed(**{f"text{i % 8}": {"type": "string", "minLength": 4000, "maxLength": 5000}})


def held(name, i):
    """What a request of the set says beyond a free one."""
    if name in ("calls", "counted"):
        text = {"type": "string", "minLength": 4000} if name == "counted" else {"type": "string"}
        function = {"name": f"say{i % 8}", "parameters": closed(text=text)}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    schema = strings(i) if name == "strings" else objects(i)
    return {"response_format": {"type": "json_schema", "whitespace": "none" if name == "compact" else "flexible",
                                "json_schema": {"schema": schema, "strict": True}}}


def request_lines(options, name):
    chance = random.Random(1)
    for i in range(options.requests):
        text = " ".join(chance.choice(WORDS) for _ in range(options.prompt))
        body = {"model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"},
                "temperature": 0.8, "seed": i, "max_tokens": options.generate, "ignore_eos": name == "free"}
        body.update({} if name == "free" else held(name, i))
        yield json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def prepare(options, folder, model, name):
    """A campaign whose prompts have run."""
    lines, campaign = f"{folder}/{name}.jsonl", f"{folder}/{name}"
    with open(lines, "w", encoding="utf-8") as file:
        file.writelines(request_lines(options, name))
    ranks.launch([options.program, "ingest", "--input", lines, "--model", model, "--campaign", campaign])
    ranks.launch([options.program, "prefill", "--campaign", campaign, "--threads", str(options.threads)])
    return campaign


def decode(options, campaign):
    output, seconds = ranks.launch([options.program, "decode", "--campaign", campaign, "--restart", "--threads", str(options.threads),
                                    "--batch", str(options.batch), "--kv-memory", "1G"])
    tokens = int(re.search(r"(\d+) generated tokens", output).group(1))
    drawing = sum(ranks.share(output, part) for part in ("sampling", "scheduling")) / 100 * seconds
    return {"seconds": seconds, "tokens": tokens, "drawing": drawing}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("checkpoint")
    for name, value in (("requests", 64), ("prompt", 64), ("generate", 96), ("batch", 32), ("threads", 1), ("rounds", 3)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.program = options.build + "/nocturne"
    names, best = ("free", "objects", "compact", "strings", "calls", "counted"), {}
    with tempfile.TemporaryDirectory() as folder:
        model = ranks.with_tokenizer(os.path.abspath(options.checkpoint), folder)
        campaigns = {name: prepare(options, folder, model, name) for name in names}
        for _ in range(options.rounds):
            for name in names:
                found = decode(options, campaigns[name])
                if name not in best or found["seconds"] < best[name]["seconds"]:
                    best[name] = found
    free = best["free"]
    for name in names:
        row = best[name]
        row["cost"] = (row["drawing"] / row["tokens"] - free["drawing"] / free["tokens"]) / (free["seconds"] / free["tokens"])
        if options.json:
            print(json.dumps({"set": name, **row}))
        else:
            print(f"{name:8} {row['tokens']:6} tokens {row['seconds']:8.2f} s  {row['tokens'] / row['seconds']:8.1f} tokens/s"
                  f"  {1e6 * row['drawing'] / row['tokens']:7.1f} us a token for draws, masks and scheduling: {100 * row['cost']:+6.2f}%")


if __name__ == "__main__":
    try:
        main()
    except ranks.Failure as failure:
        sys.exit(str(failure))
