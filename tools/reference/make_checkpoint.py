#!/usr/bin/env python3
"""Write a random DeepSeek-V4.1-Flash checkpoint of any size in the published on-disk format.

The tensor names, dtypes and shapes are those of the published checkpoint; only the sizes
come from the chosen preset. Needs numpy only. Shards are written as they are made, so memory stays small.

    python3 make_checkpoint.py PRESET OUT_DIR [--seed N] [--shards N]

Weights are normal random numbers, encoded; those of the preset `layer`, which only the speed is measured with, are random codes
with one scale a matrix, which are made as fast as a disk takes them.

A scale byte e stands for 2**(e-127). A dense FP8 weight [out, in] has one scale byte per
32x32 tile, an FP4 expert weight packs two columns a byte (even column in the low nibble)
and has one scale byte per row and 32 columns, an Engram row has one per 32 columns.
"""
import argparse
import json
import pathlib
import struct

import numpy as np

from number_formats import FP4_VALUES, FP8_VALUES, bf16_encode, fp4_encode_ties_down, fp8_encode

DTYPE_NAMES = {"bf16": "BF16", "f32": "F32", "fp8": "F8_E4M3", "e8m0": "F8_E8M0", "fp4": "I8"}
DTYPE_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


def text_config(**size):
    """The published text_config with the sizes replaced by those of a preset."""
    config = dict(
        model_type="deepseek_v41_text", vocab_size=129280, hidden_size=5120,
        moe_intermediate_size=2304, num_hidden_layers=40, num_attention_heads=64,
        num_key_value_heads=1, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280,
        o_groups=8, o_lora_rank=1024, n_routed_experts=384, n_shared_experts=1,
        num_experts_per_tok=6, scoring_func="sqrtsoftplus", topk_method="noaux_tc",
        norm_topk_prob=True, routed_scaling_factor=1.5, swiglu_limit=10.0,
        rms_norm_eps=1e-20, sliding_window=128,
        compress_ratios=[0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
        kv_source_layer_ids=[2, 8, 14, 20],
        index_source_layer_ids=[2, 8, 14, 20, 24, 28, 32, 36],
        candidate_source_layer_id=20, candidate_topk_blocks=2048, candidate_block_size=8,
        index_n_heads=32, index_head_dim=128, index_topk=512,
        rope_theta=10000.0, compress_rope_theta=160000.0,
        rope_scaling=dict(type="yarn", factor=16, beta_fast=32, beta_slow=1,
                          original_max_position_embeddings=65536),
        max_position_embeddings=1048576, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6,
        engram_layer_ids=[1, 14], engram_num_embeddings=[384006168, 384016682],
        engram_max_ngram_size=4, engram_vocab_size=16000000, engram_n_heads=8,
        engram_head_dim=256, engram_pad_token_id=2, engram_compressed_vocab_size=99092,
        n_mtp_layers=3, num_nextn_predict_layers=3, dspark_block_size=5,
        dspark_noise_token_id=128799, dspark_target_layer_ids=[37, 38, 39],
        dspark_markov_rank=256, dspark_n_routed_experts=128, dspark_num_experts_per_tok=3,
        bos_token_id=0, eos_token_id=1, pad_token_id=2, tie_word_embeddings=False)
    config.update(size)
    return config


def vision_config(**size):
    config = dict(num_hidden_layers=32, hidden_size=1024, num_attention_heads=16,
                  intermediate_size=2816, patch_size=14, rope_theta=10000.0,
                  downsample_ratio=3, min_pixels=295936, max_image_tokens=1024)
    config.update(size)
    return config


PRESETS = {
    # Every kind of layer of the real model, a few MB.
    "tiny": (text_config(
        vocab_size=512, hidden_size=128, moe_intermediate_size=64, num_hidden_layers=10,
        num_attention_heads=8, head_dim=64, qk_rope_head_dim=16, q_lora_rank=64, o_groups=4,
        o_lora_rank=32, n_routed_experts=16, num_experts_per_tok=3, sliding_window=16,
        compress_ratios=[0, 0] + [2] * 4 + [1] * 4 + [0] * 3, kv_source_layer_ids=[2, 4, 6],
        index_source_layer_ids=[2, 4, 6, 8], candidate_source_layer_id=6,
        candidate_topk_blocks=4, candidate_block_size=8, index_n_heads=4, index_head_dim=32,
        index_topk=8, rope_scaling=dict(type="yarn", factor=16, beta_fast=32, beta_slow=1,
                                        original_max_position_embeddings=64),
        max_position_embeddings=1024, engram_layer_ids=[1, 4], engram_max_ngram_size=4,
        engram_vocab_size=500, engram_n_heads=2, engram_head_dim=32,
        engram_compressed_vocab_size=400, dspark_noise_token_id=500,
        dspark_target_layer_ids=[7, 8, 9], dspark_markov_rank=16, dspark_n_routed_experts=8,
        dspark_num_experts_per_tok=2),
        vision_config(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                      intermediate_size=96, min_pixels=3136, max_image_tokens=64)),
    # Big enough to time, small enough for one workstation: about 1.4 GB.
    "bench": (text_config(
        vocab_size=8192, hidden_size=1024, moe_intermediate_size=512, num_hidden_layers=20,
        num_attention_heads=16, head_dim=256, qk_rope_head_dim=64, q_lora_rank=512, o_groups=4,
        o_lora_rank=512, n_routed_experts=64, num_experts_per_tok=6, sliding_window=128,
        compress_ratios=[0, 0] + [2] * 8 + [1] * 10 + [0] * 3, kv_source_layer_ids=[2, 6, 10],
        index_source_layer_ids=[2, 6, 10, 12, 14, 16, 18], candidate_source_layer_id=10,
        candidate_topk_blocks=512, index_n_heads=16, index_head_dim=128, index_topk=256,
        engram_layer_ids=[1, 6], engram_vocab_size=20000, engram_n_heads=4, engram_head_dim=64,
        engram_compressed_vocab_size=8000, dspark_noise_token_id=8000,
        dspark_target_layer_ids=[17, 18, 19], dspark_markov_rank=128,
        dspark_n_routed_experts=32, dspark_num_experts_per_tok=3),
        vision_config(num_hidden_layers=4, hidden_size=256, num_attention_heads=4,
                      intermediate_size=704)),
}
# One layer of the published sizes with all that a layer can have (compressed rows, their index and candidates), a small vocabulary
# and neither drafter nor Engram: about 7.5 GB, nearly all of it experts.
PRESETS["layer"] = (text_config(
    vocab_size=8192, num_hidden_layers=1, compress_ratios=[1], kv_source_layer_ids=[0], index_source_layer_ids=[0],
    candidate_source_layer_id=0, engram_layer_ids=[], n_mtp_layers=0, num_nextn_predict_layers=0,
    dspark_target_layer_ids=[], dspark_noise_token_id=8000), PRESETS["bench"][1])
QUICK_PRESETS = {"layer"}
# tiny without Engram.
PRESETS["noengram"] = (dict(PRESETS["tiny"][0], engram_layer_ids=[]), PRESETS["tiny"][1])


def next_prime(start, taken):
    n = start + 1
    while n in taken or any(n % d == 0 for d in range(2, int(n ** .5) + 1)):
        n += 1
    return n


def engram_rows(config):
    """Rows of each Engram table: the sum of its distinct prime bucket sizes."""
    rows, taken = [], set()
    for _ in config["engram_layer_ids"]:
        total = 0
        for _ in range(config["engram_max_ngram_size"] - 1):
            prime = config["engram_vocab_size"] - 1
            for _ in range(config["engram_n_heads"]):
                prime = next_prime(prime, taken)
                taken.add(prime)
                total += prime
        rows.append(total)
    return rows


class Plan:
    """Stands in for Writer to learn names, dtypes and shapes, in order, without making any number."""

    def __init__(self):
        self.tensors = {}

    def put(self, name, kind, shape):
        self.tensors[name] = (DTYPE_NAMES[kind], list(shape))

    def normal(self, shape, std):
        return np.broadcast_to(np.float32(0), shape)

    def bf16(self, name, array):
        self.put(name, "bf16", array.shape)

    def f32(self, name, array):
        self.put(name, "f32", array.shape)

    def norm(self, name, width):
        self.put(name, "bf16", (width,))

    def dense(self, name, out, inner, gain=1.0):
        self.put(name + ".weight", "fp8", (out, inner))
        self.put(name + ".scale", "e8m0", (-(-out // 32), -(-inner // 32)))

    def rows_fp8(self, name, rows, width):
        self.put(name + ".weight", "fp8", (rows, width))
        self.put(name + ".scale", "e8m0", (rows, width // 32))

    def expert(self, name, out, inner, gain=1.0):
        self.put(name + ".weight", "fp4", (out, inner // 2))
        self.put(name + ".scale", "e8m0", (out, inner // 32))


class Writer:
    """Makes the tensors in the planned order, each written to its shard at once."""

    def __init__(self, seed, shards):
        self.rng = np.random.default_rng(seed)
        self.shards = iter(shards)
        self.left = {}

    def put(self, name, kind, array):
        if not self.left:
            self.file, self.left = next(self.shards)
        dtype, shape = self.left.pop(name)
        assert dtype == DTYPE_NAMES[kind] and shape == list(array.shape), name
        self.file.write(np.ascontiguousarray(array).data)

    def normal(self, shape, std):
        array = self.rng.standard_normal(shape, np.float32)
        array *= np.float32(std)
        return array

    def bf16(self, name, array):
        self.put(name, "bf16", bf16_encode(array))

    def f32(self, name, array):
        self.put(name, "f32", array.astype(np.float32))

    def norm(self, name, width):
        self.bf16(name, 1 + .1 * self.normal((width,), 1))

    def dense(self, name, out, inner, gain=1.0):
        """FP8 weight with one power-of-two scale per 32x32 tile."""
        w = self.normal((out, inner), gain * inner ** -.5)
        pad = np.pad(w, ((0, -out % 32), (0, -inner % 32)))
        tiles = pad.reshape(pad.shape[0] // 32, 32, pad.shape[1] // 32, 32)
        exponent = np.ceil(np.log2(np.abs(tiles).max((1, 3)) / 448 + 1e-30))
        scaled = tiles / np.exp2(exponent)[:, None, :, None]
        self.put(name + ".weight", "fp8", fp8_encode(scaled.reshape(pad.shape)[:out, :inner]))
        self.put(name + ".scale", "e8m0", (exponent + 127).astype(np.uint8))

    def rows_fp8(self, name, rows, width):
        """FP8 table with one power-of-two scale per row and 32 columns."""
        w = self.normal((rows, width), 1.0).reshape(rows, width // 32, 32)
        exponent = np.ceil(np.log2(np.abs(w).max(2) / 448))
        w /= np.exp2(exponent)[..., None]
        self.put(name + ".weight", "fp8", fp8_encode(w.reshape(rows, width)))
        self.put(name + ".scale", "e8m0", (exponent + 127).astype(np.uint8))

    def expert(self, name, out, inner, gain=1.0):
        """FP4 weight, two columns a byte, one power-of-two scale per row and 32 columns."""
        w = self.normal((out, inner // 32, 32), gain * inner ** -.5)
        exponent = np.ceil(np.log2(np.maximum(w.max(2), -w.min(2)) / 6))
        w /= np.exp2(exponent)[..., None]
        code = fp4_encode_ties_down(w.reshape(out, inner))
        self.put(name + ".weight", "fp4", code[:, 0::2] | code[:, 1::2] << 4)
        self.put(name + ".scale", "e8m0", (exponent + 127).astype(np.uint8))


class QuickWriter(Writer):
    """Random codes instead of encoded random numbers, with about the same sizes of weights."""

    def codes(self, shape, values):
        """Bytes of random codes, none of them NaN, and the root of the mean square of what they stand for."""
        code = np.frombuffer(self.rng.bytes(int(np.prod(shape))), np.uint8).reshape(shape)
        used = values[np.arange(256) & 0xbf] if len(values) == 256 else values
        return code, float(np.sqrt(np.mean(np.square(used, dtype=np.float64))))

    def scales(self, shape, std, mean_size):
        return np.full(shape, 127 + round(np.log2(std / mean_size)), np.uint8)

    def dense(self, name, out, inner, gain=1.0):
        code, size = self.codes((out, inner), FP8_VALUES)
        self.put(name + ".weight", "fp8", code & np.uint8(0xbf))
        self.put(name + ".scale", "e8m0", self.scales((-(-out // 32), -(-inner // 32)), gain * inner ** -.5, size))

    def expert(self, name, out, inner, gain=1.0):
        code, size = self.codes((out, inner // 2), FP4_VALUES)
        self.put(name + ".weight", "fp4", code)
        self.put(name + ".scale", "e8m0", self.scales((out, inner // 32), gain * inner ** -.5, size))


def write_moe(w, prefix, c, experts):
    dim, inter = c["hidden_size"], c["moe_intermediate_size"]
    w.bf16(prefix + ".gate.weight", w.normal((experts, dim), dim ** -.5))
    w.f32(prefix + ".gate.bias", w.normal((experts,), .1))
    w.f32(prefix + ".gate.bias_vl", w.normal((experts,), .1))
    for e in range(experts):
        w.expert(f"{prefix}.experts.{e}.w1", inter, dim)
        w.expert(f"{prefix}.experts.{e}.w3", inter, dim)
        w.expert(f"{prefix}.experts.{e}.w2", dim, inter)
    w.dense(prefix + ".shared_experts.w1", inter, dim)
    w.dense(prefix + ".shared_experts.w3", inter, dim)
    w.dense(prefix + ".shared_experts.w2", dim, inter)


def write_block(w, prefix, c, experts):
    dim, hc = c["hidden_size"], c["hc_mult"]
    heads, head = c["num_attention_heads"], c["head_dim"]
    a = prefix + ".attn"
    w.dense(a + ".wq_a", c["q_lora_rank"], dim)
    w.norm(a + ".q_norm.weight", c["q_lora_rank"])
    w.dense(a + ".wq_b", heads * head, c["q_lora_rank"], 2.0)
    w.dense(a + ".wkv", head, dim)
    w.norm(a + ".kv_norm.weight", head)
    w.dense(a + ".wo_a", c["o_groups"] * c["o_lora_rank"], heads * head // c["o_groups"])
    w.dense(a + ".wo_b", dim, c["o_groups"] * c["o_lora_rank"])
    w.f32(a + ".attn_sink", w.normal((heads,), .5))
    w.norm(prefix + ".attn_norm.weight", dim)
    w.norm(prefix + ".ffn_norm.weight", dim)
    for part in ("attn", "ffn"):
        mix = (2 + hc) * hc
        w.f32(f"{prefix}.hc_{part}_fn", w.normal((mix, hc * dim), .05))
        w.f32(f"{prefix}.hc_{part}_base", w.normal((mix,), .2))
        w.f32(f"{prefix}.hc_{part}_scale", 1 + w.normal((3,), .1))
    write_moe(w, prefix + ".ffn", c, experts)


def write_backbone(w, c):
    dim, head = c["hidden_size"], c["head_dim"]
    w.bf16("embed.weight", w.normal((c["vocab_size"], dim), 1.0))
    rows = engram_rows(c)
    for layer in range(c["num_hidden_layers"]):
        prefix = f"layers.{layer}"
        write_block(w, prefix, c, c["n_routed_experts"])
        if layer in c["kv_source_layer_ids"]:
            p = prefix + ".attn.compressor"
            w.bf16(p + ".wkv.weight", w.normal((head, dim), dim ** -.5))
            if c["compress_ratios"][layer] > 1:
                w.bf16(p + ".wgate.weight", w.normal((head, dim), dim ** -.5))
            w.norm(p + ".norm.weight", head)
        if layer in c["index_source_layer_ids"]:
            p = prefix + ".attn.indexer"
            w.dense(p + ".wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            w.bf16(p + ".weights_proj.weight", w.normal((c["index_n_heads"], dim), dim ** -.5))
            if layer in c["kv_source_layer_ids"]:
                w.bf16(p + ".wk.weight", w.normal((c["index_head_dim"], head), head ** -.5))
                w.norm(p + ".k_norm.weight", c["index_head_dim"])
        if layer in c["engram_layer_ids"]:
            p = prefix + ".engram"
            hc = c["hc_mult"]
            cols = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
            w.rows_fp8(p + ".embed", rows[c["engram_layer_ids"].index(layer)], c["engram_head_dim"])
            w.dense(p + ".wkv", dim * (hc + 1), cols * c["engram_head_dim"])
            w.bf16(p + ".q_weight", 1 + w.normal((hc, dim), .1))
            w.bf16(p + ".k_weight", 1 + w.normal((hc, dim), .1))
    w.norm("norm.weight", dim)
    w.bf16("head.weight", w.normal((c["vocab_size"], dim), 2 * dim ** -.5))


def write_drafter(w, c):
    if c["n_mtp_layers"] == 0:
        return
    dim, rank = c["hidden_size"], c["dspark_markov_rank"]
    for stage in range(c["n_mtp_layers"]):
        write_block(w, f"mtp.{stage}", c, c["dspark_n_routed_experts"])
    w.dense("mtp.0.main_proj", dim, dim * len(c["dspark_target_layer_ids"]))
    w.norm("mtp.0.main_norm.weight", dim)
    last = f"mtp.{c['n_mtp_layers'] - 1}"
    w.norm(last + ".norm.weight", dim)
    w.bf16(last + ".markov_head.embed.weight", w.normal((c["vocab_size"], rank), 1.0))
    w.bf16(last + ".markov_head.head.weight", w.normal((c["vocab_size"], rank), rank ** -.5))
    w.f32(last + ".confidence_head.proj.weight", w.normal((1, dim + rank), dim ** -.5))


def write_vision(w, c, v):
    dim, inter, llm = v["hidden_size"], v["intermediate_size"], c["hidden_size"]
    area = v["downsample_ratio"] ** 2
    w.bf16("vision.patch_embed.proj.weight", w.normal((dim, 3 * v["patch_size"] ** 2), .04))
    w.bf16("vision.patch_embed.proj.bias", w.normal((dim,), .1))
    for i in range(v["num_hidden_layers"]):
        p = f"vision.blocks.{i}"
        w.norm(p + ".norm1.weight", dim)
        w.bf16(p + ".attn.wqkv.weight", w.normal((3 * dim, dim), dim ** -.5))
        w.bf16(p + ".attn.wqkv.bias", w.normal((3 * dim,), .1))
        w.bf16(p + ".attn.wo.weight", w.normal((dim, dim), dim ** -.5))
        w.bf16(p + ".attn.wo.bias", w.normal((dim,), .1))
        w.norm(p + ".norm2.weight", dim)
        w.bf16(p + ".mlp.w1.weight", w.normal((2 * inter, dim), dim ** -.5))
        w.bf16(p + ".mlp.w2.weight", w.normal((dim, inter), inter ** -.5))
    w.norm("vision.norm.weight", dim)
    w.bf16("aligner.w1.weight", w.normal((llm, dim * area), (dim * area) ** -.5))
    w.bf16("aligner.w1.bias", w.normal((llm,), .1))
    w.bf16("aligner.w2.weight", w.normal((llm, llm), llm ** -.5))
    w.bf16("aligner.w2.bias", w.normal((llm,), .1))
    for name in ("image_start", "image_end", "image_newline"):
        w.bf16(name, w.normal((llm,), 1.0))


def write_model(w, text, vision):
    write_backbone(w, text)
    write_drafter(w, text)
    write_vision(w, text, vision)


def start_shard(path, tensors):
    """Writes the header of a shard; returns the open file and the bytes of data to come."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + int(np.prod(shape)) * DTYPE_BYTES[dtype]
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[offset, end])
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file = open(path, "wb")
    file.write(struct.pack("<Q", len(text)) + text)
    return file, offset


def write_shards(folder, count, writer, seed, text, vision):
    """Writes the shards and their index; returns the number of tensors and their bytes."""
    plan = Plan()
    write_model(plan, text, vision)
    names, index, total, shards = list(plan.tensors), {}, 0, []
    for s in range(count):
        name = f"model-{s + 1:05d}-of-{count:05d}.safetensors"
        part = names[len(names) * s // count: len(names) * (s + 1) // count]
        tensors = {n: plan.tensors[n] for n in part}
        file, size = start_shard(folder / name, tensors)
        shards.append((file, tensors))
        index.update({n: name for n in part})
        total += size
    write_model(writer(seed, shards), text, vision)
    for file, _ in shards:
        file.close()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(dict(metadata=dict(total_size=total), weight_map=index), indent=1))
    return len(names), total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=2)
    args = parser.parse_args()
    text, vision = PRESETS[args.preset]
    text = dict(text, engram_num_embeddings=engram_rows(text))
    args.out.mkdir(parents=True, exist_ok=True)
    tensors, total = write_shards(
        args.out, args.shards, QuickWriter if args.preset in QUICK_PRESETS else Writer, args.seed, text, vision)
    (args.out / "config.json").write_text(json.dumps(dict(
        architectures=["DeepseekV41ForCausalLM"], model_type="deepseek_v41",
        image_token_id=text["vocab_size"] - 16, text_config=text, vision_config=vision,
        quantization_config=dict(quant_method="fp8", weight_block_size=[32, 32],
                                 scale_fmt="ue8m0", expert_dtype="fp4")), indent=1))
    if text["engram_layer_ids"]:
        rng = np.random.default_rng(args.seed + 1)
        token_map = np.concatenate([np.arange(text["engram_compressed_vocab_size"]), rng.integers(
            0, text["engram_compressed_vocab_size"], text["vocab_size"] - text["engram_compressed_vocab_size"])])
        (args.out / "engram_token_map.json").write_text(json.dumps(token_map.tolist()))
    print(f"{args.out}: {tensors} tensors, {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
