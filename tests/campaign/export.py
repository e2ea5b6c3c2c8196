"""Export: results.jsonl and errors.jsonl line by line against the parts read with h5py, results.h5, and speed."""

import glob
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time

import h5py
import numpy

from campaigns import Program, Tokens, line, texts

nocturne, write_results, model = Program(sys.argv[1]), Program(sys.argv[2]), sys.argv[3]
tokens = Tokens(model)
CLOSE = tokens.added["</think>"]
SHAPES = [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}, {"n": 3}, {"thinking": {"type": "enabled"}},
          {"thinking": {"type": "enabled"}, "logprobs": True, "top_logprobs": 2, "n": 2}]


def make(folder, count, bad_every=9):
    with open(folder + "/in.jsonl", "w", encoding="utf-8") as file:
        for i in range(count):
            file.write(line(f"r{i}\u00e9", **SHAPES[i % len(SHAPES)]))
            if i % bad_every == 4:
                file.write("{bad\n" if i % 2 else line(f"x{i}", model="gpt"))
    campaign = folder + "/campaign"
    nocturne("ingest", "--input", folder + "/in.jsonl", "--model", model, "--campaign", campaign)
    return campaign


def entry(i, value, top=None):
    value = -9999.0 if numpy.isinf(value) else value
    raw = tokens.bytes.get(int(i), b"")
    made = {"token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": value}
    return made if top is None else made | {"top_logprobs": [entry(*t) for t in top]}


def logprob_entries(part, c, begin, end):
    start, k = int(part["token_offsets"][c]), int(part["top_count"][c])
    top = int(part["top_offsets"][c])
    made = []
    for t in range(begin, end):
        at = top + t * k
        pairs = list(zip(part["top_ids"][at:at + k], part["top_logprobs"][at:at + k]))
        made.append(entry(part["token_ids"][start + t], part["logprobs"][start + t], pairs))
    return made


def choice(part, c, index, thinking, logprobs):
    a, b = part["token_offsets"][c:c + 2]
    ids, text_tokens = part["token_ids"][a:b].tolist(), int(part["text_tokens"][c])
    stopped, text = int(part["cause"][c]) in (1, 2), texts(part, "text")[c]
    assert thinking or CLOSE not in ids
    message = {"role": "assistant", "content": text.lstrip("\n"), "refusal": None}
    content_from, reasoning = 0, 0
    if thinking:
        reasoning = ids.index(CLOSE) if CLOSE in ids else len(ids) - stopped
        content_from = reasoning + 1 if CLOSE in ids else len(ids)
        thought = tokens.decode(ids[:min(reasoning, text_tokens)]).lstrip("\n")
        message["reasoning_content"] = thought.rstrip("\n") if CLOSE in ids else thought
        message["content"] = tokens.decode(ids[content_from:text_tokens]).lstrip("\n")
    listed = None
    if logprobs:
        listed = {"content": logprob_entries(part, c, content_from, text_tokens), "refusal": None}
        if thinking:
            listed["reasoning_content"] = logprob_entries(part, c, 0, min(reasoning, text_tokens))
    reason = ["stop", "length"][part["finish"][c]]
    return {"index": index, "message": message, "logprobs": listed, "finish_reason": reason}, reasoning


def same(found, expected, where="line"):
    """Equality in which floats are compared as float32."""
    if isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys(), (where, found, expected)
        for key in expected:
            same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), (where, found, expected)
        for i, pair in enumerate(zip(found, expected)):
            same(*pair, f"{where}[{i}]")
    elif isinstance(expected, (float, numpy.floating)):
        assert numpy.float32(found) == numpy.float32(expected), (where, found, expected)
    else:
        assert found == expected, (where, found, expected)


def read_part(path):
    with h5py.File(path) as file:
        return {name: file[name][:] for name in file}


def expected_lines(campaign):
    """{request: (body without its volatile members, or error)} from the parts."""
    with h5py.File(campaign + "/requests.h5") as file:
        thinking, top, custom = file["thinking"][:], file["top_logprobs"][:], texts(file, "custom_id")
        names = texts(file, "model")
    results, errors, times = {}, {}, {}
    for path in sorted(glob.glob(campaign + "/results/rank-*/part-*.h5")):
        part = read_part(path)
        for r, request in enumerate(part["request"].tolist()):
            times[request] = part["finished_at"][r]
            if part["failed"][r]:
                errors[request] = {"custom_id": custom[request], "status": int(part["error_status"][r])}
                continue
            first, last = part["choice_offsets"][r:r + 2].tolist()
            made = [choice(part, c, c - first, thinking[request], top[request] >= 0) for c in range(first, last)]
            prompt = int(part["prompt_tokens"][r])
            completion = int(part["token_offsets"][last] - part["token_offsets"][first])
            cached = int(part["cached_tokens"][r])
            usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                     "prompt_tokens_details": {"cached_tokens": cached}, "prompt_cache_hit_tokens": cached,
                     "prompt_cache_miss_tokens": prompt - cached}
            if thinking[request]:
                usage["completion_tokens_details"] = {"reasoning_tokens": sum(m[1] for m in made)}
            body = {"object": "chat.completion", "created": int(part["finished_at"][r]), "model": names[request],
                    "choices": [m[0] for m in made], "usage": usage}
            results[request] = {"custom_id": custom[request], "body": body}
    return results, errors, times


def load(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def check_results(campaign, found, order, expected):
    assert [one["custom_id"] for one in found] == [expected[r]["custom_id"] for r in order]
    for one, request in zip(found, order):
        assert one.keys() == {"id", "custom_id", "response", "error"} and one["error"] is None
        assert one["response"].keys() == {"status_code", "request_id", "body"}
        assert one["response"]["status_code"] == 200 and re.fullmatch("batch_req_[0-9a-f]{32}", one["id"])
        body = one["response"]["body"]
        assert body.pop("id").startswith("chatcmpl-") and body.pop("system_fingerprint").startswith("fp_")
        same(body, expected[request]["body"])
    assert len({one["id"] for one in found}) == len(found)


def check_errors(found, campaign, failed):
    with h5py.File(campaign + "/requests.h5") as file:
        wanted = [(int(n), status, None if not has else name) for n, status, has, name in zip(
            file["errors/line"][:], file["errors/status"][:], file["errors/has_custom_id"][:],
            texts(file, "errors/custom_id"))]
        wanted += [(int(file["line"][r]), e["status"], e["custom_id"]) for r, e in failed.items()]
    wanted.sort()
    assert len(found) == len(wanted)
    for one, (number, status, custom_id) in zip(found, wanted):
        assert one["custom_id"] == custom_id, (one, custom_id)
        if status:
            assert one["error"] is None and one["response"]["status_code"] == status
            assert one["response"]["body"]["error"].keys() == {"message", "type", "param", "code"}
        else:
            assert one["response"] is None and one["error"].keys() == {"code", "message", "line"}
            assert one["error"]["line"] == number and one["error"]["code"]


def check_index(campaign):
    """results.h5 shows what the parts hold, also after the campaign has been moved."""
    moved = campaign + "-moved"
    os.rename(campaign, moved)
    parts = [read_part(path) for path in sorted(glob.glob(moved + "/results/rank-*/part-*.h5"))]
    with h5py.File(moved + "/results.h5") as file:
        for name in parts[0]:
            if name.endswith("offsets"):
                lengths = numpy.concatenate([numpy.diff(part[name].astype(numpy.int64)) for part in parts])
                assert (numpy.diff(file[name][:].astype(numpy.int64)) == lengths).all() and file[name][0] == 0, name
            else:
                assert file[name].is_virtual or not len(file[name]), name
                joined = numpy.concatenate([part[name] for part in parts])
                assert numpy.array_equal(file[name][:], joined), name
        place = file["record_of_request"][:]
        request = file["request"][:]
        assert all(request[record] == i for i, record in enumerate(place) if record >= 0)
        assert (place >= 0).sum() == len(set(request.tolist()))
    os.rename(moved, campaign)


def small(folder):
    campaign = make(folder, 60)
    write_results(campaign, 11)
    said = nocturne("export", "--campaign", campaign)
    assert "5 of 60 requests have no result yet" in said, said
    results, errors, times = expected_lines(campaign)
    assert len(results) + len(errors) == 55 and errors
    found = load(campaign + "/results.jsonl")
    check_results(campaign, found, sorted(results), results)
    check_errors(load(campaign + "/errors.jsonl"), campaign, errors)
    check_index(campaign)
    with open(campaign + "/results.jsonl", "rb") as file:
        before = file.read()
    nocturne("export", "--campaign", campaign)
    with open(campaign + "/results.jsonl", "rb") as file:
        assert file.read() == before
    output = folder + "/other.jsonl"
    nocturne("export", "--campaign", campaign, "--order", "completion", "--output", output)
    check_results(campaign, load(output), sorted(results, key=lambda r: (times[r], r)), results)
    status = json.loads(nocturne("status", "--campaign", campaign, "--json"))
    assert status["total"] == status["done"] + status["failed"] + status["waiting"] == 67, status
    assert (status["done"], status["waiting"]) == (len(results), 5), status
    assert "header, content hash and structure are right" in nocturne("inspect", campaign)
    assert not [name for name in os.listdir(campaign) if name.endswith(".tmp")]
    nocturne("inspect", glob.glob(campaign + "/results/rank-0000/part-*.h5")[0])
    return campaign


def request(custom_id, url, **body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


def kinds(folder):
    """Bodies of all three kinds; a call's arguments are an object, and exports don't differ."""
    os.makedirs(folder + "/kinds")
    schema = {"type": "object", "properties": {"k": {"type": "string"}}}
    with open(folder + "/kinds/in.jsonl", "w", encoding="utf-8") as file:
        for i in range(4):
            file.write(request(f"chat{i}", "/v1/chat/completions", model="nano",
                               messages=[{"role": "user", "content": "Hi"}], thinking={"type": "disabled"},
                               tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}]))
            file.write(request(f"responses{i}", "/v1/responses", model="nano", input="Hi",
                               tools=[{"type": "function", "name": "f", "parameters": schema}]))
            file.write(request(f"messages{i}", "/v1/messages", model="nano", max_tokens=30,
                               messages=[{"role": "user", "content": "Hi"}], stop_sequences=["END"],
                               tools=[{"name": "f", "input_schema": schema}]))
    campaign = folder + "/kinds/campaign"
    nocturne("ingest", "--input", folder + "/kinds/in.jsonl", "--model", model, "--campaign", campaign)
    write_results(campaign, 0)
    nocturne("export", "--campaign", campaign)
    found = load(campaign + "/results.jsonl")
    assert {one["custom_id"][:4] for one in found} == {"chat", "resp", "mess"}, found
    called = 0
    for one in found:
        body, kind = one["response"]["body"], one["custom_id"].rstrip("0123456789")
        if kind == "chat":
            message = body["choices"][0]["message"]
            assert body["object"] == "chat.completion" and "reasoning_content" not in message
            calls = [(call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"])
                     for call in message.get("tool_calls", [])]
            assert (body["choices"][0]["finish_reason"] == "tool_calls") == bool(calls)
        elif kind == "responses":
            assert body["object"] == "response" and body["id"].startswith("resp_") and body["status"] == "completed"
            assert body["output"][0]["type"] == "reasoning", body
            calls = [(item["name"], json.loads(item["arguments"]), item["call_id"])
                     for item in body["output"] if item["type"] == "function_call"]
            assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        else:
            assert body["type"] == "message" and body["role"] == "assistant" and body["id"].startswith("msg_")
            calls = [(block["name"], block["input"], block["id"])
                     for block in body["content"] if block["type"] == "tool_use"]
            assert (body["stop_reason"] == "tool_use") == bool(calls) and body["stop_sequence"] is None
        for name, arguments, call_id in calls:
            assert name == "f" and arguments == {"k": "5"} and re.fullmatch(r"call_00_[A-Za-z0-9]{20}\d{4}", call_id)
            called += 1
    assert called == len(found)


def full(campaign):
    """A write that fails leaves the old file as it is."""
    with open(campaign + "/results.jsonl", "rb") as file:
        before = file.read()
    for part in range(1, 10):
        said = nocturne("export", "--campaign", campaign, code=4, file_bytes=len(before) * part // 10)
        assert "File too large" in said and campaign in said, said
    with open(campaign + "/results.jsonl", "rb") as file:
        assert file.read() == before
    assert not [name for name in os.listdir(campaign) if name.endswith(".tmp")]


def names(campaign):
    """What is no regular file stays what it is, and the two files don't take each other's place."""
    pipe, link = campaign + "/pipe", campaign + "/link"
    os.mkfifo(pipe)
    for option in ("--output", "--errors"):
        assert "is no regular file" in nocturne("export", "--campaign", campaign, option, pipe, code=4)
    said = nocturne("score", "--model", model, "--input", "/dev/null", "--output", pipe, "--quiet", code=4)
    assert "is no regular file" in said and stat.S_ISFIFO(os.stat(pipe).st_mode), said
    os.unlink(pipe)
    os.symlink("results.jsonl", link)
    before = open(campaign + "/results.jsonl", "rb").read()
    for both in (campaign + "/results.jsonl", link):
        assert "two names" in nocturne("export", "--campaign", campaign, "--errors", both, code=2)
    assert open(campaign + "/results.jsonl", "rb").read() == before
    os.unlink(link)


def damaged(campaign):
    """A torn part is left out of the export, and is named."""
    path = sorted(glob.glob(campaign + "/results/rank-0000/part-*.h5"))[0]
    whole = open(path, "rb").read()
    with open(path, "wb") as file:
        file.write(whole[:-100])
    said = nocturne("export", "--campaign", campaign)
    assert path in said and "left out" in said and "9 of 60 requests have no result" in said, said
    assert "NOT WHOLE" in nocturne("inspect", campaign, code=3)
    with open(path, "wb") as file:
        file.write(whole)


def nothing_left(folder, campaign):
    """No file for what there is none of; an old one goes away."""
    shutil.rmtree(campaign + "/results")
    nocturne("export", "--campaign", campaign)
    assert not os.path.exists(campaign + "/results.jsonl") and os.path.exists(campaign + "/errors.jsonl")
    with h5py.File(campaign + "/results.h5") as file:
        assert len(file["request"]) == 0 and (file["record_of_request"][:] == -1).all()
    clean = folder + "/clean"
    os.makedirs(clean)
    other = make(clean, 3, bad_every=100)
    write_results(other, 0)
    nocturne("export", "--campaign", other)
    assert os.path.exists(other + "/results.jsonl") and not os.path.exists(other + "/errors.jsonl")


def speed(folder):
    os.makedirs(folder + "/speed")
    campaign = make(folder + "/speed", 6000)
    write_results(campaign, 0)
    begun = time.time()
    nocturne("export", "--campaign", campaign)
    seconds, size = time.time() - begun, os.path.getsize(campaign + "/results.jsonl") / 1e6
    print(f"export: {size:.1f} MB in {seconds:.2f} s, {size / seconds:.1f} MB/s")


with tempfile.TemporaryDirectory() as scratch:
    made = small(scratch)
    full(made)
    names(made)
    kinds(scratch)
    damaged(made)
    nothing_left(scratch, made)
    speed(scratch)
print("export: all checks passed")
