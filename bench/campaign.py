#!/usr/bin/env python3
"""Times the phases that read and write files, ingest and export, on made-up campaigns of several kinds.

    taskset -c 0 python3 bench/campaign.py BUILD_DIR [--case NAME ...] [--scale 1] [--rounds 2] [--json]

Inputs are made from a seed below a temporary folder, their words from the vocabulary of the published tokenizer
(tests/data/recipe/tokenizer.json), so that they encode about as real texts do. Answers are written by bench-campaign
through the program's own writer; no model runs. MB/s: bytes of the input of ingest, or of the output of export, by
processor time of the whole command (user and system); "waited" is what passed besides: the disk, and other programs.
"limit": the same bytes through a bare line scan and a bare HDF5 write. Only the standard library is needed.
"""
import argparse
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENIZER = ROOT + "/tests/data/recipe/tokenizer.json"
MARKS = "｜"  # of the special tokens


def printable_bytes():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


class Words:
    """Texts of words as frequent as their tokens' ranks say; a pool is made once and cut."""

    POOL = 4 << 20

    def __init__(self, tokenizer, seed):
        with open(tokenizer, encoding="utf-8") as file:
            vocabulary = sorted(json.load(file)["model"]["vocab"].items(), key=lambda item: item[1])
        alphabet = printable_bytes()
        self.latin, self.parts, self.han = [], [], []
        for spelling, _ in vocabulary[:60000]:
            try:
                text = bytes(alphabet[c] for c in spelling).decode()
            except (UnicodeDecodeError, KeyError):
                continue
            if text[0] == " " and len(text) > 1 and text[1:].isascii() and text[1:].isalpha():
                self.latin.append(text[1:])
            elif text.isascii() and text.isalpha() and text.islower():
                self.parts.append(text)
            elif all("\u4e00" <= c <= "\u9fa5" for c in text):
                self.han.append(text)
        self.random = random.Random(seed)

    def rank(self, words):
        """Zipf: the probability of a rank falls as its inverse."""
        return words[min(int(len(words) ** self.random.random()) - 1, len(words) - 1)]

    def word(self):
        kind = self.random.random()
        if kind < .93:
            return self.rank(self.latin)
        if kind < .97:      # what no token spells: names, rare words
            return "".join(self.rank(self.parts) for _ in range(3))
        return str(self.random.randrange(10 ** self.random.randrange(1, 6)))

    def sentence(self):
        words = [self.word() for _ in range(self.random.randrange(4, 24))]
        text = words[0].capitalize() + " " + " ".join(words[1:])
        kind = self.random.random()
        if kind < .03:
            return f"`{words[0]}({words[1]})` gives \"{words[2]}\":\n\n```python\nfor i in range({len(text)}):\n" \
                   f"    {words[1]}[i] = {words[2]}(i, {len(words)})\n```\n"
        if kind < .08:
            return f"\n- **{words[0]}**: {text}\n"
        return text.replace(" ", ", ", 1) + (".\n\n" if kind > .9 else ". " if kind > .2 else "? ")

    @functools.cached_property
    def latin_pool(self):
        made, size = [], 0
        while size < self.POOL:
            made.append(self.sentence())
            size += len(made[-1])
        return "".join(made)

    @functools.cached_property
    def han_pool(self):
        made, size = [], 0
        while size < self.POOL // 8:
            words = "".join(self.rank(self.han) for _ in range(self.random.randrange(3, 16)))
            made.append(words + ("。" if self.random.random() < .5 else "，"))
            size += len(made[-1])
        return "".join(made)

    def text(self, least, most, pool=None):
        pool = pool or self.latin_pool
        length = self.random.randrange(least, most + 1)
        begin = self.random.randrange(len(pool) - length)
        return pool[begin:begin + length]


class Inputs:
    """Lines of a case, and what a model may have answered."""

    def __init__(self, words):
        self.words, self.random = words, words.random

    def chat(self, user, **body):
        system = {"role": "system", "content": self.words.text(40, 300)}
        return "/v1/chat/completions", {"messages": [system, {"role": "user", "content": user}], "max_tokens": 2048, **body}

    def line_short(self, index):
        return self.chat_only(self.words.text(80, 120))

    line_one = line_short

    def chat_only(self, user):
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": user}], "max_tokens": 256}

    def line_chat(self, index):
        return self.chat(self.words.text(1000, 4000), temperature=.6, top_p=.95, seed=index)

    def line_escaped(self, index):
        user = "".join(self.words.text(20, 60) + "\u2014\u201c\u00e9\u201d " for _ in range(60))
        return self.chat(user, temperature=.6)

    def line_han(self, index):
        return self.chat(self.words.text(500, 2000, self.words.han_pool), temperature=.6)

    def line_documents(self, index):
        return self.chat("Summarize:\n\n" + self.words.text(50000, 200000))

    def line_logprobs(self, index):
        return self.chat(self.words.text(500, 2000), logprobs=True, top_logprobs=5)

    def schema(self, depth=2):
        names = {self.words.rank(self.words.latin).lower() for _ in range(5)}
        properties = {name: {"type": self.random.choice(["string", "integer", "boolean"]),
                             "description": self.words.text(20, 120)} for name in sorted(names)}
        if depth > 1:
            properties["options"] = self.schema(depth - 1)
        return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}

    def function(self, number):
        return {"name": f"tool_{number}", "description": self.words.text(60, 300), "parameters": self.schema()}

    def line_strict(self, index):
        url, body = self.line_tools(index)
        for tool in body["tools"]:
            tool["function"]["strict"] = True
        return url, body

    def line_tools(self, index):
        call = {"id": f"call_{index}", "type": "function",
                "function": {"name": "tool_0", "arguments": json.dumps({"query": self.words.text(20, 60)})}}
        user, more = ({"role": "user", "content": self.words.text(100, 600)} for _ in range(2))
        answer = {"role": "tool", "tool_call_id": call["id"], "content": self.words.text(200, 1500)}
        messages = [user, {"role": "assistant", "content": "", "tool_calls": [call]}, answer, more]
        tools = [{"type": "function", "function": self.function(n)} for n in range(4)]
        return "/v1/chat/completions", {"messages": messages, "tools": tools, "max_tokens": 2048}

    def line_responses(self, index):
        tools = [{"type": "function", **self.function(0)}] if index % 2 else []
        turns = [{"role": "user", "content": [{"type": "input_text", "text": self.words.text(300, 1500)}]},
                 {"role": "assistant", "content": [{"type": "output_text", "text": self.words.text(100, 500)}]},
                 {"role": "user", "content": self.words.text(300, 1500)}]
        body = {"instructions": self.words.text(50, 300), "input": turns, "max_output_tokens": 2048}
        return "/v1/responses", body | ({"tools": tools} if tools else {})

    def line_messages(self, index):
        turns = [{"role": "user", "content": [{"type": "text", "text": self.words.text(300, 1500)}]},
                 {"role": "assistant", "content": self.words.text(100, 500)},
                 {"role": "user", "content": self.words.text(300, 1500)}]
        body = {"system": self.words.text(50, 300), "messages": turns, "max_tokens": 2048}
        if index % 2:
            function = self.function(0)
            body["tools"] = [{"name": function["name"], "description": function["description"],
                              "input_schema": function["parameters"]}]
        return "/v1/messages", body

    def write(self, path, name, lines):
        make = getattr(self, "line_" + name)
        with open(path, "w", encoding="utf-8") as file:
            for i in range(lines):
                url, body = make(i)
                line = {"custom_id": f"request-{i:08}", "method": "POST", "url": url,
                        "body": {"model": "deepseek-v4.1-flash", **body}}
                file.write(json.dumps(line, ensure_ascii=name == "escaped") + "\n")

    def answer(self, name):
        """What a model writes from the place where it is asked on."""
        think = self.words.text(100, 1500) if name != "short" else self.words.text(20, 80)
        content = self.words.text(*{"short": (40, 300), "documents": (1000, 5000)}.get(name, (300, 3000)))
        if name == "han":
            content = self.words.text(100, 1000, self.words.han_pool)
        if name in ("tools", "strict"):
            dsml = f"{MARKS}DSML{MARKS} "
            given = "".join(f'<{dsml}parameter name="{self.words.rank(self.words.latin).lower()}" string="true">'
                            f"{self.words.text(10, 200)}</{dsml}parameter>\n" for _ in range(3))
            content = f'\n\n<{dsml}calls>\n<{dsml}invoke name="tool_1">\n{given}</{dsml}invoke>\n</{dsml}calls>'
        return think + "\n</think>" + content

    def write_answers(self, path, name, count=512):
        with open(path, "w", encoding="utf-8") as file:
            for _ in range(count):
                file.write(json.dumps(self.answer(name)) + "\n")


CASES = {   # lines at scale 1
    "one": (1, "a single request: what starting costs"),
    "short": (50000, "prompts of 100 bytes"),
    "chat": (50000, "chat requests of 1 to 4 kB"),
    "escaped": (10000, "2 kB, quotes and dashes as \\u escapes"),
    "han": (15000, "Chinese, in UTF-8"),
    "documents": (600, "documents of 50 to 200 kB"),
    "tools": (10000, "a conversation with four tools"),
    "strict": (5000, "the same, to be called by their schemas"),
    "logprobs": (800, "log-probabilities with 5 alternatives"),
    "responses": (15000, "Responses bodies"),
    "messages": (15000, "Messages bodies"),
}


def model_folder(folder):
    """inputs/nano with the published tokenizer and context: ingest and export read no weights."""
    model = os.path.join(folder, "model")
    os.mkdir(model)
    for name in os.listdir(ROOT + "/inputs/nano"):
        if name not in ("tokenizer.json", "config.json"):
            os.symlink(f"{ROOT}/inputs/nano/{name}", f"{model}/{name}")
    os.symlink(TOKENIZER, model + "/tokenizer.json")
    with open(ROOT + "/inputs/nano/config.json", encoding="utf-8") as file:
        config = json.load(file)
    config["text_config"]["max_position_embeddings"] = 1 << 20
    with open(model + "/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    return model


def make_inputs(case, lines, source, answers):
    """In a process of its own: what a child is said to use at most includes what its parent held when it began."""
    child = os.fork()
    if not child:
        try:
            inputs = Inputs(Words(TOKENIZER, case))
            inputs.write(source, case, lines)
            inputs.write_answers(answers, case)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{case}: the inputs could not be made")


def run(*command):
    """Processor seconds, seconds besides, and the largest resident size in MB."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: code {process.returncode}\n{said}")
    seconds = used.ru_utime + used.ru_stime
    return seconds, max(time.monotonic() - begun - seconds, 0), used.ru_maxrss / 1024, said


class Bench:
    def __init__(self, build, folder, options):
        self.program, self.helper = build + "/nocturne", build + "/bench/bench-campaign"
        self.folder, self.options = folder, options
        self.model = model_folder(folder)

    def show(self, phase, case, path, runs):
        megabytes = os.path.getsize(path) * 1e-6
        seconds, waited, memory, _ = min(runs)
        limit = min(json.loads(run(self.helper, "limit", path, self.folder + "/scratch.h5")[3])["seconds"]
                    for _ in range(self.options.rounds))
        row = {"phase": phase, "case": case, "mb": round(megabytes, 2), "seconds": round(seconds, 3),
               "mb_s": round(megabytes / seconds, 1), "of_limit": round(limit / seconds, 4),
               "waited": round(waited, 3), "peak_mb": round(memory, 1)}
        if self.options.json:
            print(json.dumps(row), flush=True)
            return
        print(f"{phase:8}{case:11}{megabytes:8.1f} MB {seconds:8.3f} s {row['mb_s']:8.1f} MB/s "
              f"{100 * row['of_limit']:6.1f} % of limit {waited:8.3f} s waited {memory:8.1f} MB peak", flush=True)

    def measure(self, case, lines):
        source, answers, campaign = (f"{self.folder}/{name}" for name in ("in.jsonl", "answers.jsonl", "campaign"))
        make_inputs(case, lines, source, answers)
        runs = []
        for _ in range(self.options.rounds):
            shutil.rmtree(campaign, ignore_errors=True)
            runs.append(run(self.program, "ingest", "--input", source, "--model", self.model, "--campaign", campaign))
            if ", 0 refused" not in runs[-1][3]:
                sys.exit(f"{case}: {runs[-1][3]}")
        self.show("ingest", case, source, runs)
        run(self.helper, "answers", campaign, answers)
        runs = [run(self.program, "export", "--campaign", campaign) for _ in range(self.options.rounds)]
        self.show("export", case, campaign + "/results.jsonl", runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", help="build folder with nocturne and bench/bench-campaign")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), metavar="NAME",
                        help="; ".join(f"{name}: {text}" for name, (_, text) in CASES.items()))
    parser.add_argument("--scale", type=float, default=1, help="of the number of lines")
    parser.add_argument("--rounds", type=int, default=2, help="the best counts")
    parser.add_argument("--keep", help="make inputs in this folder, and leave them there")
    parser.add_argument("--json", action="store_true", help="one JSON line a measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nocturne-bench-") as folder:
        if options.keep:
            folder = options.keep
            os.makedirs(folder)
        bench = Bench(os.path.abspath(options.build), folder, options)
        for case in options.case:
            bench.measure(case, max(int(CASES[case][0] * options.scale), 1))


if __name__ == "__main__":
    main()
