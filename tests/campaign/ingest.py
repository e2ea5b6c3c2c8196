"""Ingest: what requests.h5 holds, bad lines, duplicates, strictness, running again, restarts, and speed."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import h5py

from campaigns import Program, attribute, line, texts

nocturne, _, model = Program(sys.argv[1]), sys.argv[2], sys.argv[3]


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def contents(folder):
    one = write(folder + "/one.jsonl", line("a", max_tokens=5) + "\n" + "{bad\n" + line("b", model="gpt-4"))
    two = write(folder + "/two.jsonl", line("\u00fc\"", temperature=0.5, top_p=0.25, seed=77, n=2, stop=["x", "yz"],
                logit_bias={"7": 1.5}, logprobs=True, top_logprobs=4, presence_penalty=1, frequency_penalty=-1,
                top_k=9, min_p=0.125, stop_token_ids=[3, 4], user="someone", odd_field=1) + line("c").rstrip("\n"))
    said = nocturne("ingest", "--input", one, two, "--model", model, "--campaign", folder + "/campaign", "--seed", 11)
    assert "3 requests, 2 refused (invalid_json_line 1, model_not_found 1)" in said, said
    assert "6 lines (1 blank)" in said and "odd_field=1" in said and "user" not in said, said
    with h5py.File(folder + "/campaign/requests.h5") as file:
        assert attribute(file, "format") == "nocturne.requests" and file.attrs["format_version"] == 5
        assert file.attrs["seed"] == 11 and file.attrs["lines"] == 6 and file.attrs["blank_lines"] == 1
        assert texts(file, "custom_id") == ["a", "\u00fc\"", "c"]
        assert texts(file, "input_files") == [one, two]
        assert file["file"][:].tolist() == [0, 1, 1] and file["line"][:].tolist() == [1, 1, 2]
        expected = {"temperature": .5, "top_p": .25, "min_p": .125, "top_k": 9, "presence_penalty": 1,
                    "frequency_penalty": -1, "choices": 2, "top_logprobs": 4, "has_seed": 1, "seed": 77}
        for name, value in expected.items():
            assert file[name][1] == value, (name, file[name][1])
        assert file["max_tokens"][0] == 5 and file["top_logprobs"][0] == -1 and file["has_seed"][0] == 0
        assert file["bias_ids"][:].tolist() == [7] and file["bias_values"][:].tolist() == [1.5]
        assert file["bias_offsets"][:].tolist() == [0, 0, 1, 1] and file["stop_ids"][:].tolist() == [3, 4]
        assert file["stop_list_offsets"][:].tolist() == [0, 0, 2, 2] and texts(file, "stops") == ["x", "yz"]
        assert file["token_offsets"][0] == 0 and file["token_offsets"][3] == len(file["token_ids"])
        assert texts(file, "errors/code") == ["invalid_json_line", "model_not_found"]
        assert file["errors/line"][:].tolist() == [3, 4] and file["errors/has_custom_id"][:].tolist() == [0, 1]
        assert file["errors/status"][:].tolist() == [0, 404]

        def described(name, item):
            if isinstance(item, h5py.Dataset):
                assert attribute(item, "description") and len(attribute(item, "xxh3_64")) == 16, name
                assert h5py.check_string_dtype(item.dtype) is None, name
        file.visititems(described)
    return one, two


def again(folder, one, two):
    base = ["--model", model, "--campaign", folder + "/campaign"]
    with open(folder + "/campaign/requests.h5", "rb") as file:
        before = file.read()
    assert "already ingested" in nocturne("ingest", "--input", one, two, *base, "--seed", 11)
    assert "options" in nocturne("ingest", "--input", one, two, *base, code=6)
    assert "content of the input" in nocturne("ingest", "--input", two, one, *base, "--seed", 11, code=6)
    os.makedirs(folder + "/campaign/results/rank-0000")
    write(folder + "/campaign/results/rank-0000/part-000000.h5", "old")
    write(folder + "/campaign/results/rank-0000/note", "mine")
    assert "already ingested" in nocturne("ingest", "--input", one, two, *base, "--seed", 11)
    with open(folder + "/campaign/requests.h5", "rb") as file:
        assert file.read() == before
    nocturne("ingest", "--input", two, *base, "--restart")
    assert os.listdir(folder + "/campaign/results/rank-0000") == ["note"]
    with h5py.File(folder + "/campaign/requests.h5") as file:
        assert texts(file, "custom_id") == ["\u00fc\"", "c"]


def refusals(folder):
    base = ["--model", model, "--campaign"]
    twice = write(folder + "/twice.jsonl", line("a") + line("b") + line("a", max_tokens=3))
    said = nocturne("ingest", "--input", twice, *base, folder + "/twice", code=3)
    assert "duplicate_custom_id" in said and "line 3" in said and "line 1" in said, said
    assert not os.path.exists(folder + "/twice/requests.h5")
    said = nocturne("ingest", "--input", twice, *base, folder + "/twice", "--on-duplicate", "error-line")
    assert "2 requests, 1 refused (duplicate_custom_id 1)" in said, said
    empty = write(folder + "/empty.jsonl", "\n \n")
    assert "empty_file" in nocturne("ingest", "--input", empty, *base, folder + "/empty", code=3)
    bad = write(folder + "/bad.jsonl", "nonsense\n" * 30 + line("u", odd_field=1))
    said = nocturne("ingest", "--input", bad, *base, folder + "/strict", "--strict", code=3)
    assert "31 bad lines" in said and said.count("invalid_json_line") == 20, said
    assert sorted(os.listdir(folder + "/strict")) == ["lock"]
    nocturne("ingest", "--input", bad, *base, folder + "/bad")
    said = nocturne("status", "--campaign", folder + "/bad", "--json")
    status = json.loads(said)
    assert (status["total"], status["failed"], status["waiting"], status["done"]) == (31, 30, 1, 0), said
    assert "cannot open" in nocturne("ingest", "--input", folder + "/none", *base, folder + "/x", code=4)
    assert not os.path.exists(folder + "/x")


def names(folder):
    lines = [line(str(i), model=name) for i, name in enumerate(["NANO", "DeepSeek-V4.1-Flash", "mine", "other"])]
    path = write(folder + "/names.jsonl", "".join(lines))
    nocturne("ingest", "--input", path, "--model", model, "--campaign", folder + "/names", "--model-name", "Mine")
    with h5py.File(folder + "/names/requests.h5") as file:
        assert texts(file, "model") == ["NANO", "DeepSeek-V4.1-Flash", "mine"]
        assert texts(file, "errors/custom_id") == ["3"]


def full(folder):
    """A write that fails, at every stage of the file, is an error that names file and cause and leaves nothing behind."""
    path = write(folder + "/full.jsonl", "".join(line(str(i)) for i in range(50)))
    base = ["ingest", "--input", path, "--model", model, "--campaign", folder + "/full"]
    nocturne(*base)
    size = os.path.getsize(folder + "/full/requests.h5")
    os.unlink(folder + "/full/requests.h5")
    for part in range(1, 20):
        said = nocturne(*base, code=4, file_bytes=size * part // 20)
        assert "requests.h5" in said and "File too large" in said, said
        assert sorted(os.listdir(folder + "/full")) == ["lock"]
    nocturne(*base, file_bytes=2 * size)


def folders(folder):
    """--restart leaves files alone that bear the names of exports in a folder that was no campaign."""
    path = write(folder + "/folders.jsonl", line("a"))
    base = ["ingest", "--input", path, "--model", model, "--campaign", folder + "/folders", "--restart"]
    os.makedirs(folder + "/folders")
    write(folder + "/folders/results.jsonl", "mine")
    nocturne(*base)
    assert sorted(os.listdir(folder + "/folders")) == ["lock", "requests.h5", "results.jsonl"]
    nocturne(*base)
    assert sorted(os.listdir(folder + "/folders")) == ["lock", "requests.h5"]


def command_lines(folder):
    """Words that are wrong, folders that aren't there, and help."""
    path = write(folder + "/lines.jsonl", line("a" + "\u00e9" * 150) * 2)
    base = ["ingest", "--input", path, "--model", model, "--campaign"]
    for words in (["", "--strict"], ["--strict"], []):
        assert "--campaign needs a value" in nocturne(*base, *words, code=2)
    assert "duplicate_custom_id" in nocturne(*base, folder + "/lines", code=3)  # said in whole characters
    nocturne(*base, folder + "/lines", "--strict", code=3)
    none = folder + "/not-there"
    for words in (["ingest", "--input", path, "--model", none, "--campaign", folder + "/lines"], ["inspect", none],
                  ["tokenize", "--tokenizer", model, "--input", none], ["parse", "--tokenizer", model, "--input", none],
                  ["score", "--model", model, "--input", none, "--output", folder + "/scores.h5"],
                  ["run", "--campaign", path], ["run", "--campaign", none]):
        assert (path if path in words[2:] and none not in words else none) in nocturne(*words, code=4)
    os.makedirs(none)
    assert "neither the config.json" in nocturne("inspect", none, code=4)
    for words in (["help"], ["--help"], ["help", "run"], ["run", "--help"]):
        assert ("--kv-memory" if "run" in words else "commands:") in nocturne(*words)
    assert "is not a command" in nocturne("help", "runs", code=2)
    with open("/dev/full", "wb") as full_disk:
        done = subprocess.run([nocturne.path, "help"], stdout=full_disk, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4 and "standard output" in done.stderr, done


def large(folder):
    """Many lines, one of 300 MB; memory stays flat."""
    path = folder + "/large.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for i in range(30000):
            file.write(line(f"request-{i}"))
        file.write('{"custom_id": "long", "body": "')
        for i in range(300):
            file.write("x" * 1000000)
        file.write('"}\n' + line("last"))
    begun = time.time()
    said = nocturne("ingest", "--input", path, "--model", model, "--campaign", folder + "/large")
    print(said.splitlines()[1], f"({time.time() - begun:.1f} s in all)")
    assert "30001 requests, 1 refused" in said, said
    with h5py.File(folder + "/large/requests.h5") as file:
        assert len(file["file"]) == 30001 and file["line"][30000] == 30002
        assert texts(file, "custom_id")[12345] == "request-12345"
        assert file["errors/line"][:].tolist() == [30001]
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    assert most < 900, f"{most} MiB"


with tempfile.TemporaryDirectory() as scratch:
    first, second = contents(scratch)
    again(scratch, first, second)
    refusals(scratch)
    names(scratch)
    full(scratch)
    folders(scratch)
    command_lines(scratch)
    large(scratch)
print("ingest: all checks passed")
