#!/usr/bin/env python3
"""Speed of mlx-vlm on a checkpoint, on the CPU in float32: one JSON line a measurement. Run by ../compare.py.

    mlx_vlm_peer.py CHECKPOINT --prompt 512 --batches 1,8,32

Weights are unpacked to float32 (its bfloat16 products are slower still on a CPU), so it needs about eight times the checkpoint's
packed size in memory.
"""
import argparse
import json
import pathlib
import sys
import time

NOT_INSTALLED = 77
SHORT_PROMPT = 8  # of the sequences that decode


def load(checkpoint):
    try:
        import mlx.core as mx
        from mlx.utils import tree_map
        from mlx_vlm.utils import load_model
    except ImportError as error:
        print(f"mlx-vlm is not installed ({error}): pip install mlx-vlm 'mlx[cpu]'", file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    mx.set_default_device(mx.cpu)
    model = load_model(checkpoint, lazy=True)
    floats = tree_map(lambda value: value.astype(mx.float32) if value.dtype == mx.bfloat16 else value,
                      model.language_model.parameters())
    model.language_model.update(floats)
    mx.eval(model.language_model.parameters())
    return mx, model.language_model


def make_ids(mx, model, batch, tokens):
    size = model.config.vocab_size - 300
    return mx.array([[3 + (i * 2654435761 + b * 40503) % 2**32 % size for i in range(tokens)] for b in range(batch)])


def step(mx, model, ids, cache):
    """The likeliest next token of each sequence."""
    chosen = mx.argmax(model(ids, cache=cache).logits[:, -1], axis=-1)
    mx.eval(chosen)
    return chosen


def prefill_rate(mx, model, tokens):
    begin = time.monotonic()
    step(mx, model, make_ids(mx, model, 1, tokens), model.make_cache())
    return tokens / (time.monotonic() - begin)


def decode_rate(mx, model, batch):
    steps, cache, best = (8 if batch <= 8 else 4), model.make_cache(), 0
    chosen = step(mx, model, make_ids(mx, model, batch, SHORT_PROMPT), cache)
    for _ in range(steps):
        begin = time.monotonic()
        chosen = step(mx, model, chosen[:, None], cache)
        best = max(best, batch / (time.monotonic() - begin))
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batches", default="1,8,32")
    arguments = parser.parse_args()
    mx, model = load(arguments.checkpoint)
    for batch in [int(text) for text in arguments.batches.split(",")]:
        print(json.dumps({"phase": "decode", "batch": batch, "tokens_per_second": decode_rate(mx, model, batch)}),
              flush=True)
    print(json.dumps({"phase": "prefill", "prompt": arguments.prompt,
                      "tokens_per_second": prefill_rate(mx, model, arguments.prompt)}), flush=True)


if __name__ == "__main__":
    main()
