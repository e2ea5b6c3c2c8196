"""Images end to end on the embedded model, whose vision encoder has random weights: what is told apart and what stays equal
is checked, not what is said.

    images.py [TEST ...]
"""

import base64
import collections
import json
import os
import random
import shutil
import signal
import struct
import sys
import time
import zlib

import h5py
import numpy as np

sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "faults"))
import campaigns  # noqa: E402
from campaigns import (  # noqa: E402
    CONFLICT, DONE, INPUT, MODEL, SOURCE, STOPPED, USAGE, Launch, answers, chat, check, compare, exported, ingest, parts, run,
    text_list, write_lines)

IMAGES = os.path.join(SOURCE, "tests", "data", "recipe", "images")
GREEDY = {"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}


# ---- images and requests ----


def pixels_of(width, height, seed):
    """A coloured pattern that differs from seed to seed."""
    y, x = np.mgrid[0:height, 0:width]
    shade = (x * (3 + seed) + y * (7 + 2 * seed)) % 256
    return np.stack([shade, (shade * 5 + 31 * seed) % 256, (x + y + 60 * seed) % 256], axis=2).astype(np.uint8)


def png(width, height, seed):
    pixels = pixels_of(width, height, seed)
    raw = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def image(source, detail=None):
    """A content part: bytes become a data URL, a str is the reference itself."""
    url = source if isinstance(source, str) else "data:image/png;base64," + base64.b64encode(source).decode()
    described = {"url": url}
    if detail:
        described["detail"] = detail
    return {"type": "image_url", "image_url": described}


def show(custom_id, *content, **options):
    """A request whose content is texts and images in this order."""
    listed = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return chat(custom_id, listed, **{**GREEDY, **options})


SMALL, WIDE, TALL, LARGE, LOWER = png(60, 60, 1), png(200, 50, 2), png(40, 130, 3), png(300, 280, 4), png(700, 300, 5)


def mixed_requests():
    """Texts and images in many orders; images near the budget of 64 tokens are longer than the smallest chunks."""
    long_text = "Define river. " * 40
    return [
        chat("text", "Define dog.", **GREEDY),
        show("one", image(SMALL)),
        show("between", "What is ", image(LARGE), " and why?"),
        show("two", image(LARGE), image(WIDE)),
        show("swapped", image(WIDE), image(LARGE)),
        show("twice", image(TALL), " and again ", image(TALL)),
        show("once", image(TALL), " and again "),
        show("long", long_text, image(LARGE), long_text, image(TALL), "So?"),
        show("many", *[image(i) for i in (LARGE, WIDE, TALL, SMALL, LARGE, LARGE)], "Which?"),
        show("low", image(LOWER, "low")),
        show("high", image(LOWER, "high")),
        show("small-low", image(SMALL, "low"), "Define dog."),
        show("sampled", image(SMALL), "Tell me a story.", temperature=0.9, seed=3, n=3, max_tokens=12),
        chat("story", "Tell me a story about a fox.", temperature=0.9, max_tokens=12),
        show("file", image("grad_64x48.png"), "What is it?"),
    ]


def make(folder, name, lines, **options):
    campaign = os.path.join(folder, name)
    requests = write_lines(campaign + ".jsonl", [json.dumps(line) for line in lines])
    output, _ = ingest(campaign, requests, extra=["--image-root", IMAGES], **options)
    return campaign, output


def embeddings(campaign):
    """(hash, low detail) of each image -> its rows; a second record of an image is a failure."""
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        known = list(zip(text_list(file["images"], "hash"), (int(low) for low in file["images/low_detail"])))
        tokens = file["images/tokens"][()]
    found = {}
    for path in parts(campaign, "vision"):
        with h5py.File(path, "r") as file:
            rows, offsets, hashes = file["rows"][()], file["row_offsets"][()], text_list(file, "hash")
            for record, index in enumerate(file["image"][()]):
                check(known[index] not in found, f"{path}: image {index} has a second record")
                check(hashes[record] == known[index][0], f"{path}: image {index} has another hash than in requests.h5")
                span = rows[int(offsets[record]) : int(offsets[record + 1])]
                check(len(span) == tokens[index], f"{path}: image {index} has {len(span)} rows, expected {tokens[index]}")
                found[known[index]] = span.tobytes()
    check(len(found) == len(known), f"{campaign}: {len(found)} of {len(known)} images have embeddings")
    return found


def vision(campaign, ranks=1, *options, **expected):
    return run(["vision", "--campaign", campaign, "--threads", "1", *options], ranks, **expected)[0]


# ---- the tests ----


def layouts(folder):
    """The same bits on any number of ranks, with spans cut by small steps, in any order, staged or not."""
    lines = mixed_requests()
    campaign, _ = make(folder, "reference", lines)
    vision(campaign)
    run(["run", "--campaign", campaign, "--threads", "1"], 1)
    expected, spans = answers(campaign), embeddings(campaign)
    check(len(spans) == 7, f"{len(spans)} images, expected 7: SMALL, WIDE, TALL, LARGE, LOWER twice and a file")
    check(len(set(spans.values())) == len(spans), "two images have the same embeddings")
    trials = [  # vision's ranks, (command, ranks, step tokens), ...
        (2, [("run", 2, 512)]),
        (3, [("prefill", 2, 33), ("decode", 1, 512)]),
        (1, [("prefill", 3, 50), ("decode", 2, 64)]),
        (2, [("run", 1, 32)]),
    ]
    for number, (encoders, launches) in enumerate(trials):
        random.Random(number).shuffle(lines)
        campaign, _ = make(folder, f"trial-{number}", lines)
        vision(campaign, encoders, "--part-seconds", str(number % 2 * 30))
        check(embeddings(campaign) == spans, f"embeddings differ on {encoders} ranks")
        for command, ranks, tokens in launches:
            run([command, "--campaign", campaign, "--threads", "1", "--step-tokens", tokens], ranks)
        compare(answers(campaign), expected, f"vision on {encoders} ranks, {launches}")


def told_apart(folder):
    """What an image shows, its place, its detail and the order of two images matter; how it was referred to doesn't."""
    with open(os.path.join(IMAGES, "grad_64x48.png"), "rb") as file:
        data = file.read()
    lines = mixed_requests() + [
        show("data", image(data), "What is it?"),
        show("url", image("file://" + os.path.join(IMAGES, "grad_64x48.png")), "What is it?"),
        show("other", image(png(64, 48, 9)), "What is it?"),
        show("after", "What is it?", image(data)),
        show("none", "What is it?"),
    ]
    campaign, _ = make(folder, "campaign", lines)
    vision(campaign)
    run(["run", "--campaign", campaign, "--threads", "1"], 2)
    found = answers(campaign)
    for same in ("data", "url"):
        check(found[same] == found["file"], f"{same} and file differ, though they show the same image")
    for a, b in (("two", "swapped"), ("twice", "once"), ("low", "high"), ("file", "other"), ("file", "after"), ("file", "none")):
        check(found[a][2] != found[b][2], f"{a} and {b} have the same log-probabilities")


def kinds(folder):
    """The same image in bodies of all three kinds: the same prompt, one image stored, the field of a bad one named."""
    data = base64.b64encode(SMALL).decode()
    url = "data:image/png;base64," + data

    def line(custom_id, address, **body):
        return {"custom_id": custom_id, "method": "POST", "url": address, "body": {"model": "nano", **body}}

    def response(custom_id, source):
        content = [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": source}]
        return line(custom_id, "/v1/responses", reasoning={"effort": "none"}, max_output_tokens=6, temperature=0,
                    input=[{"role": "user", "content": content}])

    def message(custom_id, source):
        shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": source}}
        content = [{"type": "text", "text": "Look"}, shown]
        return line(custom_id, "/v1/messages", thinking={"type": "disabled"}, max_tokens=6, temperature=0,
                    messages=[{"role": "user", "content": content}])

    lines = [show("chat", "Look", image(SMALL)), response("response", url), message("message", data)]
    lines += [response("bad-response", url[:400]), message("bad-message", data[:400])]
    campaign, _ = make(folder, "campaign", lines)
    vision(campaign)
    run(["run", "--campaign", campaign, "--threads", "1"], 1)
    run(["export", "--campaign", campaign])
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        check(len(file["images/tokens"]) == 1, "the image is stored more than once")
        tokens, prompts = int(file["images/tokens"][0]), np.split(file["token_ids"][()], file["token_offsets"][1:-1].astype(int))
        check(all(np.array_equal(prompt, prompts[0]) for prompt in prompts), "prompts of the kinds differ")
        params = text_list(file["errors"], "param")
        check(params == ["input[0].content[1].image_url", "messages[0].content[1].source.data"], f"params: {params}")
    found = answers(campaign)
    for name in ("response", "message"):
        check(found[name][2][0][0] == found["chat"][2][0][0], f"{name} has other tokens than chat")
    bodies = {line["custom_id"]: line["response"]["body"] for line in exported(campaign)[0]}
    usage = bodies["response"]["usage"]
    check(usage["input_tokens"] == len(prompts[0]) and usage["input_tokens_details"]["image_tokens"] == tokens, f"{usage}")
    check(bodies["message"]["usage"]["input_tokens"] == len(prompts[0]), f"usage: {bodies['message']['usage']}")


def once(folder):
    """An image is stored and encoded once, whatever number of lines show it; refused lines leave nothing behind."""
    unused = png(90, 90, 8)
    lines = [show(f"r-{i}", image((SMALL, WIDE, TALL)[i % 3]), image(SMALL), f"Question {i}?") for i in range(30)]
    lines += [show("low", image(SMALL, "low")), show("bad", image(unused), image(b"GIF89a"))]
    lines += [show("long", image(png(91, 90, 8)), "Define river. " * 3000), show("r-0", image(png(92, 90, 8)))]
    campaign, output = make(folder, "campaign", lines, expect=INPUT)
    check("duplicate_custom_id" in output, output)
    extra = ["--image-root", IMAGES, "--on-duplicate", "error-line"]
    output, _ = ingest(campaign, campaign + ".jsonl", extra=extra)
    check("61 images shown, 3 different ones stored" in output, output)
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        check(len(file["images/tokens"]) == 3 and file.attrs["images"] == 3, "images are stored more than once")
        offsets = file["images/data_offsets"][()]
        stored = [file["images/data"][int(a) : int(b)].tobytes() for a, b in zip(offsets, offsets[1:])]
        check(stored == [SMALL, WIDE, TALL], "stored images differ from those given")
        spans = file["images/tokens"][()]
        ids, starts = file["token_ids"][()], file["token_offsets"][()]
        indices, places, bounds = (file[name][()] for name in ("image_indices", "image_positions", "image_offsets"))
        for request in range(len(starts) - 1):
            prompt = ids[int(starts[request]) : int(starts[request + 1])]
            expected = np.zeros(len(prompt), bool)
            for k in range(int(bounds[request]), int(bounds[request + 1])):
                expected[places[k] : places[k] + spans[indices[k]]] = True
            check((expected == (prompt == 3071)).all(), f"request {request}: spans are not where image ids are")
            check(expected.sum() == file["image_tokens"][request], f"request {request}: image_tokens is wrong")
    output = vision(campaign, 3)
    check("vision: 3 images, 0 done before, 3 to do" in output, output)
    records = collections.Counter()
    for path in parts(campaign, "vision"):
        with h5py.File(path, "r") as file:
            records.update(file["image"][()].tolist())
    check(records == {0: 1, 1: 1, 2: 1}, f"records of images: {records}")
    check("3 done before, 0 to do" in vision(campaign, 2), "a second launch does not see that all is done")
    run(["run", "--campaign", campaign, "--threads", "1"], 2)
    run(["export", "--campaign", campaign])
    with open(os.path.join(campaign, "results.jsonl"), encoding="utf-8") as file:
        results = [json.loads(line) for line in file]
    usages = {line["custom_id"]: line["response"]["body"]["usage"] for line in results}
    text_only = run(["status", "--campaign", campaign, "--json"])[0]
    check(json.loads(text_only)["images"] == 3 and json.loads(text_only)["encoded"] == 3, text_only)
    first = usages["r-0"]
    check(first["prompt_tokens_details"]["image_tokens"] == 2 * int(spans[0]), f"usage of r-0: {first}")
    check(usages["r-1"]["prompt_tokens"] - first["prompt_tokens"] == int(spans[1] - spans[0]), "usage counts no spans")


def hostile(folder):
    """Each bad image is an error of its line, with status 400 and the field; the others go on."""
    root = os.path.join(folder, "root")
    os.mkdir(root)
    secret = os.path.join(folder, "secret.png")
    for path in (secret, os.path.join(root, "good.png")):
        with open(path, "wb") as file:
            file.write(SMALL)
    with open(os.path.join(root, "empty.png"), "wb"):
        pass
    os.symlink(secret, os.path.join(root, "link.png"))
    os.mkfifo(os.path.join(root, "pipe.png"))
    bomb = b"GIF89a" + struct.pack("<HH", 65000, 65000) + b"\0\0\0"
    huge = SMALL[:16] + struct.pack(">II", 1 << 30, 1 << 30) + SMALL[24:]
    bad = {
        "truncated": image(SMALL[: len(SMALL) // 2]),
        "nothing": image("data:image/png;base64,"),
        "noise": image(bytes(range(200))),
        "bomb": image(bomb),
        "huge": image(huge),
        "flipped": image(SMALL[:60] + bytes([SMALL[60] ^ 255]) + SMALL[61:]),
        "not-base64": image("data:image/png;base64,***"),
        "other-type": image("data:text/plain;base64,aGVsbG8="),
        "network": image("https://example.com/cat.png"),
        "missing": image("missing.png"),
        "empty": image("empty.png"),
        "escape": image("../secret.png"),
        "absolute": image(secret),
        "url": image("file://" + secret),
        "link": image("link.png"),
        "pipe": image("pipe.png"),
        "folder": image("."),
    }
    lines = [show("first", image(SMALL), "Define dog.")]
    lines += [show(name, "Look: ", part) for name, part in bad.items()]
    lines += [show("crowd", *[image("good.png")] * 601), show("context", *[image(SMALL)] * 600)]
    lines += [show("last", image("good.png"), "Define dog.")]
    campaign = os.path.join(folder, "campaign")
    requests = write_lines(campaign + ".jsonl", [json.dumps(line) for line in lines])
    output, _ = ingest(campaign, requests, extra=["--image-root", root])
    check(f"2 requests, {len(bad) + 2} refused" in output and "1 different ones stored" in output, output)
    vision(campaign, 2)
    run(["run", "--campaign", campaign, "--threads", "1"], 2)
    run(["export", "--campaign", campaign])
    results, errors = exported(campaign)
    check([line["custom_id"] for line in results] == ["first", "last"], f"answers: {results}")
    replies = {line["custom_id"]: line["response"] for line in errors}
    for name in list(bad) + ["crowd", "context"]:
        error = replies[name]["body"]["error"]
        check(replies[name]["status_code"] == 400 and error["type"] == "invalid_request_error", f"{name}: {replies[name]}")
        param = {"crowd": "messages[0].content[600].image_url.url", "context": "messages"}.get(
            name, "messages[0].content[1].image_url.url")
        check(error["param"] == param, f"{name}: param {error['param']}, expected {param}: {error}")
    check(replies["context"]["body"]["error"]["code"] == "context_length_exceeded", f"context: {replies['context']}")
    no_root = os.path.join(folder, "no-root")
    output, _ = ingest(no_root, requests)
    check("1 requests" in output, f"a file was read without --image-root: {output}")
    ingest(os.path.join(folder, "wrong-root"), requests, expect=USAGE, extra=["--image-root", secret])


def without_vision(folder):
    """prefill and run do what they can before the vision phase, and say what is missing; then the rest follows."""
    lines = mixed_requests()
    whole, _ = make(folder, "whole", lines)
    vision(whole)
    run(["run", "--campaign", whole, "--threads", "1"], 1)
    for name, chain in (("staged", ["prefill", "decode"]), ("run", ["run"])):
        campaign, _ = make(folder, name, lines)
        for command in chain:
            output, _ = run([command, "--campaign", campaign, "--threads", "1"], 2, expect=INPUT)
            if command != "decode":
                check("13 of 15 requests show images" in output and "nocturne vision" in output, output)
        check(len(parts(campaign, "results")) > 0, f"{name}: the requests without images were not run")
        vision(campaign, 2)
        for command in chain:
            run([command, "--campaign", campaign, "--threads", "1"], 2)
        compare(answers(campaign), answers(whole), f"{name}, with vision in the middle")


def make_blind(folder):
    """The embedded model without its vision encoder."""
    os.mkdir(folder)
    for name in os.listdir(MODEL):
        if not name.endswith(".safetensors") and name not in ("config.json", "model.safetensors.index.json"):
            shutil.copy(os.path.join(MODEL, name), folder)
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    del config["vision_config"], config["image_token_id"]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(MODEL, "model.safetensors.index.json"), encoding="utf-8") as file:
        index = json.load(file)
    kept = {k: v for k, v in index["weight_map"].items() if not k.startswith(("vision.", "aligner.", "image_"))}
    check(len(kept) < len(index["weight_map"]), "the model has no encoder to be left out")
    total = 0
    for shard in sorted(set(kept.values())):
        with open(os.path.join(MODEL, shard), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            data = file.read()
        written, pieces, at = {}, [], 0
        for name, tensor in header.items():
            if name in kept:
                begin, end = tensor["data_offsets"]
                pieces.append(data[begin:end])
                written[name] = dict(tensor, data_offsets=[at, at + end - begin])
                at += end - begin
        text = json.dumps(written).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, shard), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))
        total += at
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": kept}, file)


def no_images(folder):
    """Without images there is no vision phase; a model without vision_config refuses images."""
    campaign = os.path.join(folder, "text")
    requests = write_lines(campaign + ".jsonl", [json.dumps(chat("text", "Define dog.", **GREEDY))])
    ingest(campaign, requests)
    for ranks in (None, 3):
        output, _ = run(["vision", "--campaign", campaign], ranks)
        check("nothing to do" in output, output)
    check(not os.path.exists(os.path.join(campaign, "vision")), "a folder vision/ was made")
    blind = os.path.join(folder, "blind")
    make_blind(blind)
    lines = [chat("text", "Define dog.", **GREEDY), show("shows", image(SMALL))]
    for line in lines:
        line["body"]["model"] = "blind"
    campaign = os.path.join(folder, "campaign")
    requests = write_lines(campaign + ".jsonl", [json.dumps(line) for line in lines])
    ingest(campaign, requests, model=blind)
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        check(text_list(file, "custom_id") == ["text"], "the model without an encoder takes an image")
        check(file["errors/status"][()].tolist() == [400], "the refusal has another status than 400")
        message = text_list(file, "errors/message")[0]
        check("image" in message, message)
    ingest(campaign, requests, model=blind, expect=USAGE, extra=["--restart", "--image-root", IMAGES])


def many_images(folder):
    lines = [show(f"r-{i}", image(png(290, 290 + i % 3, i)), "Define dog.", max_tokens=1) for i in range(120)]
    return make(folder, "campaign", lines)[0]


def killed(folder):
    """After SIGKILL at any instant, and after SIGTERM, the same command goes on and ends with the same embeddings."""
    template = many_images(folder)
    reference = campaigns.fresh_copy(template, os.path.join(folder, "reference"))
    _, seconds = run(["vision", "--campaign", reference, "--threads", "1"], 2)
    expected = embeddings(reference)
    command = ["vision", "--campaign", None, "--threads", "1", "--part-seconds", "0"]
    draw, resumed = random.Random(5), 0
    for number in range(5):
        campaign = command[2] = campaigns.fresh_copy(template, os.path.join(folder, f"killed-{number}"))
        launch = Launch(command, 2)
        time.sleep(draw.uniform(0.3, 1) * seconds)
        launch.kill_all()
        resumed += 0 < len(parts(campaign, "vision")) < 120
        run(command, 2 + number % 2)
        check(embeddings(campaign) == expected, f"killed-{number}: other embeddings")
        left = [name for _, _, names in os.walk(os.path.join(campaign, "vision")) for name in names if "tmp" in name]
        check(not left, f"unfinished files are left: {left}")
        shutil.rmtree(campaign)
    check(resumed, "no kill hit the phase while it had some parts and not all")
    campaign = command[2] = campaigns.fresh_copy(template, os.path.join(folder, "stopped"))
    launch = Launch(command, 2)
    deadline = time.monotonic() + 30
    while len(parts(campaign, "vision")) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    for pid in launch.rank_processes()[:1]:
        os.kill(pid, signal.SIGTERM)  # one rank hears it, all stop
    code = launch.wait()
    check(code in (DONE, STOPPED), f"stopped: exit {code}: {launch.output()}")
    check(code == DONE or len(parts(campaign, "vision")) < 120, "stopped, but all was done")
    run(command, 2)
    check(embeddings(campaign) == expected, "other embeddings after a stop")


def damaged(folder):
    """A damaged part is set aside by the next launch, and its images are encoded again."""
    campaign, _ = make(folder, "campaign", mixed_requests())
    vision(campaign, 2, "--part-seconds", "0")
    expected = embeddings(campaign)
    path = parts(campaign, "vision")[1]
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    output, _ = run(["inspect", campaign], expect=INPUT)
    check("NOT WHOLE" in output, output)
    output, _ = run(["prefill", "--campaign", campaign, "--threads", "1"], 2, expect=INPUT)
    check("set aside" in output and "nocturne vision" in output, output)
    output = vision(campaign, 2)
    check(f"{len(expected)} images, {len(expected) - 1} done before, 1 to do" in output, output)
    check(embeddings(campaign) == expected, "other embeddings after the repair")
    run(["prefill", "--campaign", campaign, "--threads", "1"], 2)


def other_kernels(folder):
    """Embeddings of another instruction set don't enter a campaign; --restart of prefill keeps those that fit."""
    campaign, _ = make(folder, "campaign", mixed_requests()[:4])
    vision(campaign, 1, "--cpu-kernels", "generic")
    output, _ = run(["prefill", "--campaign", campaign, "--threads", "1"], 1, expect=CONFLICT)
    check("generic" in output and "vision/" in output, output)
    vision(campaign, 1, expect=CONFLICT)
    vision(campaign, 1, "--restart")
    run(["prefill", "--campaign", campaign, "--threads", "1"], 1)
    kept = parts(campaign, "vision")
    run(["prefill", "--campaign", campaign, "--threads", "1", "--restart"], 1)
    check(parts(campaign, "vision") == kept, "prefill --restart removed embeddings that fit")
    vision(campaign, 1, "--restart", "--cpu-kernels", "generic")
    run(["prefill", "--campaign", campaign, "--threads", "1", "--restart"], 1, expect=INPUT)
    check(not parts(campaign, "vision"), "prefill --restart kept embeddings of another instruction set")


def patches_of(width, height, pixels, size=14):
    """Of an image that is fed as it is: rows over the grid, within one channel, y, x; rounded to bfloat16."""
    x = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    bits = x.view(np.uint32)
    x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    grid = x.reshape(height // size, size, width // size, size, 3).transpose(0, 2, 4, 1, 3)
    return grid.reshape(-1, 3 * size * size), height // size, width // size


def last_logprobs(logits):
    last = logits[-1].astype(np.float64) - logits[-1].max()
    return last - np.log(np.exp(last).sum())


def reference(folder):
    """Embeddings, and log-probabilities of prompts with images, as the NumPy reference computes them from the pixels."""
    sys.path.insert(0, os.path.join(SOURCE, "tools", "reference"))
    import reference as numpy_model

    sizes = [(98, 70), (84, 126), (154, 42)]  # multiples of a patch, large and small enough: nothing is resized
    texts = ["Define dog. What is ", " and ", " and why?"]
    shown = [image(png(width, height, seed)) for seed, (width, height) in enumerate(sizes)]
    lines = [show("all", texts[0], shown[0], texts[1], shown[1], shown[2], texts[2], max_tokens=1, top_logprobs=20)]
    lines += [show(f"only-{k}", part, "Define river. " * 5, max_tokens=1, top_logprobs=20) for k, part in enumerate(shown)]
    campaign, _ = make(folder, "campaign", lines)
    vision(campaign, 2)
    run(["run", "--campaign", campaign, "--threads", "1", "--step-tokens", "32", "--all-layers"], 1)
    model = numpy_model.Model(MODEL)
    spans = []
    for seed, (width, height) in enumerate(sizes):
        patches, rows, columns = patches_of(width, height, pixels_of(width, height, seed))
        encoded = model.encode_image(patches, rows, columns)
        wide = -(-columns // 3)
        span = [model.w["image_start"]]
        for begin in range(0, len(encoded), wide):
            span += [*encoded[begin : begin + wide], model.w["image_newline"]]
        spans.append(np.array([*span, model.w["image_end"]]))
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        hashes, starts, ids = text_list(file["images"], "hash"), file["token_offsets"][()], file["token_ids"][()]
        indices, bounds = file["image_indices"][()], file["image_offsets"][()]
        names = text_list(file, "custom_id")
    found = embeddings(campaign)
    for index, expected in enumerate(spans):
        rows = np.frombuffer(found[hashes[index], 0], np.float32).reshape(len(expected), -1)
        worst = np.abs(rows - expected).max() / np.abs(expected).max()
        check(worst < 1e-4, f"image {index}: embeddings differ from the reference by {worst:.1e} of the largest")
    # The reference's forward pass gets the program's own embeddings, which were just compared: a difference in their
    # last bits can turn a rounding to FP8, and with it the choice of an expert.
    spans = [np.frombuffer(found[digits, 0], np.float32).reshape(-1, len(spans[0][0])) for digits in hashes]
    given, worst, least_gap = answers(campaign), [], np.inf
    for request, name in enumerate(names):
        prompt = ids[int(starts[request]) : int(starts[request + 1])]
        shown_here = indices[int(bounds[request]) : int(bounds[request + 1])]
        inputs = model.w["embed.weight"][prompt].astype(np.float32)
        inputs[prompt == model.image_token] = np.concatenate([spans[k] for k in shown_here])
        _, _, tops, values, *_ = given[name][2][0]
        values = np.frombuffer(values, np.float32)
        expected, blind = (
            last_logprobs(model.forward(prompt, numpy_model.State(model.c), embeddings=x)[0])[list(tops)]
            for x in (inputs, None)  # None: the table's row of the image token in place of the images
        )
        worst.append(np.abs(values - expected).max())
        least_gap = min(least_gap, np.abs(values - blind).max())
    check(np.median(worst) < 1e-3 and max(worst) < 0.5, f"log-probabilities differ from the reference by {worst}")
    check(least_gap > 1, f"a prompt without its images' embeddings would differ by {least_gap} only: the test shows nothing")


TESTS = {
    "reference": reference,
    "layouts": layouts,
    "told_apart": told_apart,
    "kinds": kinds,
    "once": once,
    "hostile": hostile,
    "without_vision": without_vision,
    "no_images": no_images,
    "killed": killed,
    "damaged": damaged,
    "other_kernels": other_kernels,
}

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # the tests' ranks share cores
    sys.exit(campaigns.main(TESTS))
