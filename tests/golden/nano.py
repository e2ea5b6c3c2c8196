#!/usr/bin/env python3
"""Whole passes on the trained model against the reference: `nocturne score` on its held-out text.

Rounded and exact mode: the likeliest next token equals the reference's at >= 97% of the positions, the perplexity is
within 0.5%. With the tail, logits stand for the last tokens only and agree there. Bad lines become error records.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

SOURCE = pathlib.Path(os.environ["NOCTURNE_SOURCE"])
PROGRAM = os.environ["NOCTURNE_PROGRAM"]
DATA = SOURCE / "tests/data/nano"
failures = 0


def check(good, what):
    global failures
    failures += not good
    print("ok  " if good else "FAIL", what)


def score(folder, name, lines, *options):
    text = folder / f"{name}.jsonl"
    text.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    out = folder / f"{name}.h5"
    subprocess.run([PROGRAM, "score", "--model", SOURCE / "inputs/nano", "--input", text, "--output", out, *options],
                   check=True)
    return h5py.File(out, "r")


def perplexity(logprobs, offsets):
    return np.exp(-np.sum(logprobs, dtype=np.float64) / (len(logprobs) - (len(offsets) - 1)))


def main():
    golden = h5py.File(DATA / "golden.h5", "r")
    lines = [json.loads(line) for line in (DATA / "heldout.jsonl").read_text().splitlines()]
    lines = [dict(id=f"text-{i}", token_ids=line["token_ids"]) for i, line in enumerate(lines)]
    offsets = golden["heldout/offsets"][:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for mode in ("rounded", "exact"):
            got = score(folder, mode, lines, "--mode", mode, "--logits")
            check((got["offsets"][:] == offsets).all() and (got["token_ids"][:] == golden["heldout/token_ids"][:]).all(),
                  f"{mode}: offsets and token ids as given")
            share = np.mean(got["logits"][:].argmax(-1) == golden[f"heldout/{mode}/argmax"][:])
            check(share >= .97, f"{mode}: likeliest token equal at {share:.2%} of the positions (limit 97%)")
            ours, theirs = perplexity(got["logprobs"][:], offsets), golden[f"heldout/{mode}"].attrs["perplexity"]
            check(abs(ours / theirs - 1) <= .005, f"{mode}: perplexity {ours:.4f}, reference {theirs:.4f} (limit 0.5%)")
            ids = bytes(got["id"][:]).decode()
            check(ids.startswith("text-0text-1") and got["id_offsets"][-1] == len(ids), f"{mode}: ids kept")
        whole = h5py.File(folder / "rounded.h5", "r")["logits"][:]
        chunked = score(folder, "chunked", lines, "--logits", "--chunk", "7")["logits"][:]
        check(np.array_equal(whole, chunked), "chunks of 7 tokens: bits equal")
        tail = score(folder, "tail", lines, "--logits", "--tail", "32", "--mode", "exact")["logits"][:]
        exact = h5py.File(folder / "exact.h5", "r")["logits"][:]
        for begin, end in zip(offsets, offsets[1:]):
            begin, end = int(begin), int(end)
            if not (np.isnan(tail[begin:max(begin, end - 32)]).all() and not np.isnan(tail[max(begin, end - 32):end]).any()):
                check(False, f"tail: NaN before the last 32 tokens of the text at {begin}")
        short = [(int(a), int(b)) for a, b in zip(offsets, offsets[1:]) if b - a <= 32]
        check(all(np.array_equal(tail[a:b], exact[a:b]) for a, b in short), f"tail: {len(short)} texts that fit it unchanged")

        mixed = score(folder, "mixed", [lines[0], "not json\n", dict(id="text", text="Define dog."), dict(id="far", token_ids=[99999])])
        check(len(mixed["offsets"]) == 3 and list(mixed["errors/line"][:]) == [2, 4], "bad lines become error records")
        check(list(mixed["token_ids"][int(mixed["offsets"][1]):]) == [0, 890, 951, 16], "text is encoded plainly after BOS")
    print(failures, "failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
