"""Metrics and the report of campaigns in several states: a page that parses, numbers that equal those counted from the
results, outside text escaped.

usage: report.py NOCTURNE MODEL
"""

import json
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.dom.minidom

import h5py
import numpy

from campaigns import Program, attribute, line

nocturne, model = Program(sys.argv[1]), sys.argv[2]
HOSTILE = "<script>alert(1)</script>&\"'\u202e\x01"


def page_of(campaign, *options, code=0):
    page = os.path.join(os.path.dirname(campaign), "report.html")
    if os.path.exists(page):
        os.remove(page)
    nocturne("report", campaign, "--output", page, *options, code=code)
    if code:
        assert not os.path.exists(page), "a report that failed has left a page"
        return None
    with open(page, encoding="utf-8") as file:
        text = file.read()
    xml.dom.minidom.parseString(text.removeprefix("<!DOCTYPE html>\n"))
    for outside in ("<script", "http://", "https://", "src=", "url(", "@import"):
        assert outside not in text, f"the page holds {outside}"
    for figure in re.findall("<figure>.*?</figure>", text, re.S):
        assert "<title>" in figure and "<desc>" in figure and "NaN" not in figure and "inf" not in figure.lower()
    return text


def number(page, key):
    return float(re.search(f'data-{key}="([^"]*)"', page)[1])


def count_results(campaign):
    done = failed = prompt = generated = 0
    for folder, _, names in os.walk(os.path.join(campaign, "results")):
        for name in names:
            with h5py.File(os.path.join(folder, name)) as part:
                failed += int(part["failed"][:].sum())
                done += int((part["failed"][:] == 0).sum())
                prompt += int(part["prompt_tokens"][:][part["failed"][:] == 0].sum())
                generated += len(part["token_ids"])
    return {"done": done, "failed": failed, "prompt-tokens": prompt, "generated-tokens": generated}


def check_counts(page, campaign, lines, refused):
    counted = count_results(campaign) | {"lines": lines, "refused": refused}
    counted["waiting"] = lines - refused - counted["done"] - counted["failed"]
    for key, value in counted.items():
        assert number(page, key) == value, f"{key}: the page says {number(page, key)}, the files {value}"
    return counted


def check_metrics(campaign, launch, generated):
    path = os.path.join(campaign, "metrics", f"launch-{launch:04d}", "rank-0000.h5")
    nocturne("inspect", path)
    with h5py.File(path) as file:
        parts = attribute(file, "parts").split(",")
        assert attribute(file, "ended") == 1 and attribute(file, "metrics_version") == 2
        assert attribute(file, "ranks") == 1 and attribute(file, "hosts")
        samples = len(file["time"])
        assert samples >= 2 and file["part_seconds"].shape == (samples, len(parts))
        growing = ("time", "steps", "prompt_tokens", "generated_tokens", "finished", "failed", "expert_pairs")
        for name in growing:
            assert len(file[name]) == samples and (numpy.diff(file[name][:]) >= 0).all(), name
        assert (numpy.diff(file["part_seconds"][:], axis=0) >= -1e-9).all()
        passed = file["time"][-1] - file["time"][0]
        assert abs(file["part_seconds"][-1].sum() - passed) < 0.2 + 0.05 * passed, "the parts do not add up"
        assert file["generated_tokens"][-1] == generated
        assert file["expert_load"][:].sum() == file["expert_pairs"][-1] > 0
        assert (file["kv_reserved"][:] <= file["kv_blocks"][:]).all()
        # Every layer with experts sends each token to the same number of them.
        rows = file["expert_load"][:].sum(axis=1)
        assert (rows > 0).all()


def main():
    with tempfile.TemporaryDirectory() as folder:
        campaign, input_path = os.path.join(folder, "campaign"), os.path.join(folder, "in.jsonl")
        lines = [line(f"r{i}", max_tokens=5 + i) for i in range(8)]
        lines += [line(HOSTILE, max_tokens=60), line(HOSTILE + "2", temperature=99)]
        with open(input_path, "w", encoding="utf-8") as file:
            file.writelines(lines)
        page_of(os.path.join(folder, "none"), code=4)
        nocturne("ingest", "--input", input_path, "--model", model, "--campaign", campaign)

        page = page_of(campaign)  # no launch yet
        check_counts(page, campaign, 10, 1)
        assert "not begun" in page and "No launch is known" in page and "<svg" not in page

        nocturne("prefill", "--campaign", campaign)
        page = page_of(campaign)
        check_counts(page, campaign, 10, 1)
        assert "not finished" in page

        nocturne("decode", "--campaign", campaign, "--batch", 2)
        page = page_of(campaign, "--card-hour", "3600", "--currency", "<EUR>")
        counted = check_counts(page, campaign, 10, 1)
        assert counted["done"] == 9 and "finished" in page and "&lt;EUR&gt;" in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;\ufffd\ufffd" in page
        assert abs(number(page, "cost") - 3600 * number(page, "card-hours")) < 1e-2
        assert "<td>invalid_value</td><td class=\"n\">1</td>" in page
        assert page.count("<svg") == 6, "plots are missing"
        assert "decode" in page and "Load of the experts" in page  # a short launch has no room for its name in plots
        # The first tokens were drawn by prefill.
        check_metrics(campaign, 1, counted["generated-tokens"] - 9)
        page_of(campaign, "--card-hour", "cheap", code=2)

        # Tokens that prompts share are told, and what they save.
        shared = os.path.join(folder, "shared")
        with open(input_path, "w", encoding="utf-8") as file:
            words = " ".join(f"Define {i} dogs." for i in range(60))
            file.writelines(line(f"s{i}", max_tokens=3, messages=[{"role": "user", "content": f"{words} And {i}?"}])
                            for i in range(6))
        nocturne("ingest", "--input", input_path, "--model", model, "--campaign", shared)
        nocturne("run", "--campaign", shared, "--cache", os.path.join(folder, "store"))
        page = page_of(shared)
        assert number(page, "shared-tokens") >= 5 * 240 and number(page, "saved-seconds") > 0
        assert number(page, "run-tokens") + number(page, "shared-tokens") == number(page, "prompt-tokens")
        assert "cache, shared folder" in page
        said = nocturne("status", "--campaign", shared)
        assert "tokens shared by prompts" in said and "shared folder: 0 blocks used" in said, said

        # A damaged file of metrics costs its launch, none of them costs the plots only.
        path = os.path.join(campaign, "metrics", "launch-0000", "rank-0000.h5")
        with open(path, "r+b") as file:
            file.truncate(1000)
        page = page_of(campaign)
        assert "1 metrics files are damaged" in page
        shutil.rmtree(os.path.join(campaign, "metrics"))
        page = page_of(campaign)
        check_counts(page, campaign, 10, 1)
        assert "<svg" not in page
        shutil.rmtree(os.path.join(campaign, "results"))
        assert number(page_of(campaign), "waiting") == 9

        # A launch that is killed has left the file of its begin.
        killed = subprocess.run(["timeout", "-s", "KILL", "0.7", sys.argv[1], "run", "--campaign", campaign, "--restart"],
                                capture_output=True, check=False)
        page = page_of(campaign)
        if killed.returncode == -9 and glob.glob(os.path.join(campaign, "metrics", "*", "rank-*.h5")):
            assert "ended without a word" in page or "done" in page


main()
