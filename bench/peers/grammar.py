#!/usr/bin/env python3
"""Times llguidance and xgrammar on the sets of ../grammar_sets.py as bench-grammar times ours: one JSON line per peer and set.

    grammar.py TOKENIZER_DIR SETS.jsonl [--peer llguidance|xgrammar]

Processor time of the calling thread, [median, 99 of 100, most] in microseconds; Python's share of a mask is about 1. A peer that is
not installed is left out; when none is, the exit code is 77. Grammars that a peer refuses, and texts that it does, are counted.
(xgrammar needs torch.)
"""
import argparse
import json
import pathlib
import sys
import time

NOT_INSTALLED = 77
END = 1


def now():
    return time.thread_time_ns() / 1000


def figures(values):
    values = sorted(values) or [0.0]
    return [round(values[len(values) // 2], 1), round(values[len(values) * 99 // 100], 1), round(values[-1], 1)]


class Llguidance:
    def __init__(self, folder):
        import llguidance
        import llguidance.numpy
        self.module, self.fill = llguidance, llguidance.numpy.fill_next_token_bitmask
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self.tokenizer = llguidance.LLTokenizer(text, eos_token=END)
        self.mask = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def encode(self, text):
        return self.tokenizer.tokenize_str(text)

    def compile(self, kind, spec):
        matcher = self.module.LLMatcher
        if kind == "regex":
            grammar = matcher.grammar_from_regex(spec)
        else:
            grammar = matcher.grammar_from_json_schema(spec if kind == "schema" else '{"type":"object"}')
        made = matcher(self.tokenizer, grammar, log_level=0)
        if made.is_error():
            raise ValueError(made.get_error())
        return made

    def begin(self, compiled):
        compiled.reset()
        return compiled

    def take_mask(self, matcher):
        self.fill(matcher, self.mask, 0)

    def accept(self, matcher, token):
        return matcher.consume_token(token)


class Xgrammar:
    def __init__(self, folder):
        import torch  # noqa: F401  xgrammar needs it
        import xgrammar
        import tokenizers
        self.module = xgrammar
        self.encoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        size = self.encoder.get_vocab_size()
        info = xgrammar.TokenizerInfo([self.encoder.id_to_token(i) or "" for i in range(size)], xgrammar.VocabType.BYTE_LEVEL,
                                      vocab_size=size, stop_token_ids=[END])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, size)

    def encode(self, text):
        return self.encoder.encode(text, add_special_tokens=False).ids

    def compile(self, kind, spec):
        if kind == "regex":
            return self.compiler.compile_regex(spec)
        if kind == "schema":
            return self.compiler.compile_json_schema(spec)
        return self.compiler.compile_builtin_json_grammar()

    def begin(self, compiled):
        return self.module.GrammarMatcher(compiled)

    def take_mask(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)


def follow(peer, compiled, ids, masks):
    matcher = peer.begin(compiled)
    for token in ids + [END]:
        start = now()
        peer.take_mask(matcher)
        masks.append(now() - start)
        if not peer.accept(matcher, token):
            return False
    return True


def time_line(peer, line, found):
    try:
        start = now()
        compiled = peer.compile(line["kind"], line["spec"])
        found["compile_us"].append(now() - start)
    except (ValueError, RuntimeError):
        found["refused"] += 1
        return
    texts = [peer.encode(text) for text in line["texts"]]
    for key in "mask_cold_us", "mask_warm_us":
        for ids in texts:
            found["texts_refused"] += not follow(peer, compiled, ids, found[key])


def measure(name, peer, lines):
    for group in dict.fromkeys(line["set"] for line in lines):
        found = {"compile_us": [], "mask_cold_us": [], "mask_warm_us": [], "refused": 0, "texts_refused": 0}
        for line in lines:
            if line["set"] == group:
                time_line(peer, line, found)
        shown = {key: figures(value) if isinstance(value, list) else value for key, value in found.items()}
        print(json.dumps({"peer": name, "set": group, "steps": len(found["mask_cold_us"]), **shown}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path, help="folder with tokenizer.json")
    parser.add_argument("sets", type=pathlib.Path, help="output of grammar_sets.py")
    parser.add_argument("--peer", choices=("llguidance", "xgrammar"), help="only this one")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.sets.read_text(encoding="utf-8").splitlines()]
    timed = 0
    for name, kind in (("llguidance", Llguidance), ("xgrammar", Xgrammar)):
        if options.peer not in (None, name):
            continue
        try:
            peer = kind(options.tokenizer)
        except ImportError as error:
            print(f"grammar.py: {name} is left out: {error}", file=sys.stderr)
            continue
        measure(name, peer, lines)
        timed += 1
    return 0 if timed else NOT_INSTALLED


if __name__ == "__main__":
    sys.exit(main())
