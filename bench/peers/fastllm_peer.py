#!/usr/bin/env python3
"""Speed of fastllm (ftllm on PyPI) on a checkpoint: one JSON line a measurement. Run by ../compare.py.

    fastllm_peer.py CHECKPOINT SCRATCH --threads N --prompt 512 --batches 1,8,32

SCRATCH gets a folder with links to the checkpoint's files and the files that fastllm wants beside them, and a copy of its Python
files beside a link to its library for CPUs only: it would load the one for accelerators first.
"""
import argparse
import ctypes
import importlib.util
import json
import pathlib
import shutil
import sys
import time

NOT_INSTALLED = 77
SHORT_PROMPT = 8  # of the sequences that decode
DECODED = 24


def text_config(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    return config.get("text_config", config)


def write_engram_meta(config, checkpoint, folder):
    """The token map and the hash multipliers, which fastllm expects to be computed beforehand."""
    import numpy

    layers = config.get("engram_layer_ids", [])
    if not layers:
        return
    size = config["engram_compressed_vocab_size"]
    bound = max(1, numpy.iinfo(numpy.int64).max // size // 2)
    multipliers = [[str(int(value) * 2 + 1) for value in numpy.random.default_rng(10007 * layer).integers(
        low=0, high=bound, size=config["engram_max_ngram_size"], dtype=numpy.int64)] for layer in layers]
    meta = {"token_map": json.loads((checkpoint / "engram_token_map.json").read_text()), "compressed_vocab_size": size,
            "pad_token_id": config["engram_pad_token_id"], "engram_layer_ids": layers, "multipliers": multipliers}
    (folder / "engram_meta.json").write_text(json.dumps(meta))


def write_tokenizer(config, folder):
    """Any tokenizer of the right size: prompts are token ids."""
    if (folder / "tokenizer.json").exists():
        return
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    vocabulary.update({f"filler{i}": i for i in range(len(letters), config["vocab_size"])})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level,
                 "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def prepare_model(checkpoint, scratch):
    folder = scratch / "model"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = text_config(checkpoint)
    if not (folder / "engram_meta.json").exists():
        write_engram_meta(config, checkpoint, folder)
    write_tokenizer(config, folder)
    return folder, config


def import_for_cpu(scratch):
    found = importlib.util.find_spec("ftllm")
    if found is None or not found.origin:
        print("fastllm is not installed: pip install ftllm", file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    package, copy = pathlib.Path(found.origin).parent, scratch / "site" / "ftllm"
    copy.mkdir(parents=True)
    for file in package.iterdir():
        if file.suffix == ".py":
            shutil.copy(file, copy)
        elif file.name != "libfastllm_tools.so" and file.name != "__pycache__":
            (copy / file.name).symlink_to(file)
    sys.path.insert(0, str(copy.parent))
    from ftllm import llm
    return llm


class Engine:
    def __init__(self, llm, folder, config, threads):
        # A thread of its own spins beside the workers; as many workers as cores thrash.
        llm.set_cpu_threads(max(1, threads - 1))
        llm.set_device_map("cpu")
        llm.set_device_map("cpu", True)
        self.library = llm.fastllm_lib
        self.vocabulary = config["vocab_size"]
        self.model = llm.model(str(folder), dtype="bfloat16", tokenizer_type="fastllm")

    def launch(self, tokens, count, seed):
        ids = [3 + (i * 2654435761 + seed * 40503) % 2**32 % (self.vocabulary - 300) for i in range(tokens)]
        return self.library.launch_response_llm_model(
            self.model.model, len(ids), (ctypes.c_int * len(ids))(*ids), ctypes.c_int(count), ctypes.c_int(count),
            ctypes.c_bool(False), ctypes.c_float(1), ctypes.c_int(1), ctypes.c_float(1), ctypes.c_float(1),
            ctypes.c_bool(False), 0, (ctypes.c_int * 1)())

    def collect(self, handles):
        """The times at which each request's tokens came."""
        times, open_ones = {handle: [] for handle in handles}, set(handles)
        while open_ones:
            for handle in list(open_ones):
                if not self.library.can_fetch_response_llm_model(self.model.model, handle):
                    continue
                if self.library.fetch_response_llm_model(self.model.model, handle) <= -1:
                    open_ones.discard(handle)
                else:
                    times[handle].append(time.monotonic())
            time.sleep(0.001)
        return list(times.values())

    def prefill(self, tokens, seed):
        begin = time.monotonic()
        return tokens / (self.collect([self.launch(tokens, 1, seed)])[0][0] - begin)

    def decode(self, batch):
        """Tokens a second while all sequences of the batch decode: between the last one's first and the first one's last token."""
        times = self.collect([self.launch(SHORT_PROMPT, DECODED, 7 * i + batch) for i in range(batch)])
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)
        if end <= begin:  # they never ran together
            begin, end = min(t[0] for t in times), max(t[-1] for t in times)
        return sum(begin < t <= end for one in times for t in one) / (end - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("scratch", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batches", default="1,8,32")
    arguments = parser.parse_args()
    llm = import_for_cpu(arguments.scratch)
    folder, config = prepare_model(arguments.checkpoint, arguments.scratch)
    engine = Engine(llm, folder, config, arguments.threads)
    engine.prefill(SHORT_PROMPT, 1)
    for batch in [int(text) for text in arguments.batches.split(",")]:
        print(json.dumps({"phase": "decode", "batch": batch, "tokens_per_second": engine.decode(batch)}), flush=True)
    print(json.dumps({"phase": "prefill", "prompt": arguments.prompt,
                      "tokens_per_second": engine.prefill(arguments.prompt, 2)}), flush=True)


if __name__ == "__main__":
    main()
