#!/usr/bin/env python3
"""The tokenizer beside Hugging Face `tokenizers` on this machine's own documentation: same ids, and how much faster.

    taskset -c 0 python3 bench/tokenizer_peer.py BUILD_DIR [--megabytes 100] [--tokenizer tests/data/recipe]

Needs the `tokenizers` package from PyPI. Texts are man pages, documentation, headers, sources and translations found on
the machine, cut at 20,000 characters and repeated in other orders until there are enough. Every text's ids are compared; both sides
are timed on one core, alternately, best of three rounds over the same texts.
"""
import argparse
import gettext
import glob
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PLACES = ("/usr/share/man/**/*.gz", "/usr/share/doc/**/*", "/usr/include/**/*.h", "/usr/lib/python3/**/*.py",
          "/usr/lib/python3.*/**/*.py", "/usr/share/perl/**/*.p[lm]", "/usr/share/locale/*/LC_MESSAGES/*.mo")
CUT = 20000


def read(path):
    try:
        if path.endswith(".mo"):
            return "\n".join(str(v) for v in gettext.GNUTranslations(open(path, "rb"))._catalog.values() if v)
        return (gzip.open(path) if path.endswith(".gz") else open(path, "rb")).read().decode()
    except (OSError, UnicodeDecodeError, EOFError, ValueError, LookupError):
        return ""


def corpus(megabytes):
    paths = sorted({p for place in PLACES for p in glob.glob(place, recursive=True) if os.path.isfile(p)})
    chooser, texts, size = random.Random(7), [], 0
    chooser.shuffle(paths)
    for path in paths:
        text = read(path)
        for begin in range(0, min(len(text), 5 * CUT), CUT):
            texts.append(text[begin:begin + CUT])
            size += len(texts[-1].encode())
        if size >= megabytes * 1e6:
            return texts, size
    base = list(texts)
    while base and size < megabytes * 1e6:             # new neighbours for old texts
        a, b = chooser.choice(base), chooser.choice(base)
        texts.append(a[chooser.randrange(len(a)):] + b[:chooser.randrange(len(b))] if a and b else a + b)
        size += len(texts[-1].encode())
    return texts, size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/data/recipe")
    args = parser.parse_args()
    try:
        import tokenizers
    except ImportError:
        sys.exit("bench/tokenizer_peer.py: the Python package 'tokenizers' is not installed")
    peer = tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    texts, size = corpus(args.megabytes)
    print(f"{len(texts)} texts, {size / 1e6:.1f} MB; tokenizers {tokenizers.__version__}")

    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "texts.jsonl"
        with lines.open("w") as out:
            for text in texts:
                out.write(json.dumps(dict(text=text), ensure_ascii=False) + "\n")
        ours = subprocess.Popen([args.build / "nocturne", "tokenize", "--tokenizer", args.tokenizer, "--input", lines],
                                stdout=subprocess.PIPE)
        different = tokens = 0
        for text, line in zip(texts, ours.stdout, strict=True):
            want, got = peer.encode(text, add_special_tokens=False).ids, json.loads(line)["ids"]
            tokens += len(want)
            different += got != want
        if ours.wait():
            sys.exit("nocturne tokenize failed")
        print(f"{tokens} tokens, {different} texts with other ids")

        sample = texts[:max(1, int(len(texts) * min(1, 8e6 / size)))]
        name = pathlib.Path(folder) / "sample.txt"
        name.write_text("\n".join(sample))
        best_peer = best_ours = 0
        for _ in range(3):
            begin = time.process_time()
            for text in sample:
                peer.encode(text, add_special_tokens=False).ids
            best_peer = max(best_peer, sum(len(t.encode()) for t in sample) / 1e6 / (time.process_time() - begin))
            rows = subprocess.run([args.build / "bench/bench-recipe", "--json", args.tokenizer,
                                   args.tokenizer / "chat_cases.jsonl", name], stdout=subprocess.PIPE, check=True).stdout
            for row in map(json.loads, rows.splitlines()):
                if row["what"] == "encode" and row["corpus"] == "texts":
                    best_ours = max(best_ours, row["best_mb_s"])
        print(f"encode: {best_ours:.1f} MB/s, tokenizers {best_peer:.1f} MB/s, ratio {best_ours / best_peer:.1f}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
