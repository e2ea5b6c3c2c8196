"""Shared by the scripts of this folder: runs the program, reads text columns, decodes tokens."""

import json
import os
import resource
import subprocess


class Program:
    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, code=0, file_bytes=None):
        """Runs a command; `file_bytes`: files can't grow beyond that."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True,
                              preexec_fn=limit if file_bytes else None)
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{arguments}: code {done.returncode}, expected {code}:\n{said}"
        return said


def texts(file, name):
    """A text column as a list of str."""
    data, offsets = bytes(file[name][:]), file[name + "_offsets"][:]
    assert offsets[0] == 0 and offsets[-1] == len(data) and (offsets[1:] >= offsets[:-1]).all(), name
    return [data[a:b].decode() for a, b in zip(offsets, offsets[1:])]


def attribute(file, name):
    value = file.attrs[name]
    return value.decode() if isinstance(value, bytes) else value


def line(custom_id, **body):
    body.setdefault("model", "nano")
    body.setdefault("messages", [{"role": "user", "content": "Define dog."}])
    body.setdefault("thinking", {"type": "disabled"})
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def byte_alphabet():
    """GPT-2's printable stand-ins for bytes, as a dict from character to byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


class Tokens:
    """Bytes of token ids, from a tokenizer.json."""

    def __init__(self, folder):
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            described = json.load(file)
        alphabet = byte_alphabet()
        added = {token["id"] for token in described["added_tokens"]}
        vocabulary = described["model"]["vocab"].items()
        self.bytes = {i: bytes(alphabet[c] for c in text) for text, i in vocabulary if i not in added}
        self.special = set()
        self.added = {}
        for token in described["added_tokens"]:
            self.bytes[token["id"]] = token["content"].encode()
            self.added[token["content"]] = token["id"]
            if token["special"]:
                self.special.add(token["id"])

    def decode(self, ids):
        shown = b"".join(self.bytes.get(int(i), b"") for i in ids if int(i) not in self.special)
        return shown.decode(errors="replace")
