#!/usr/bin/env python3
"""DeepSeek-V4.1-Flash in plain NumPy: the arithmetic, one sequence at a time, no speed.

It says exactly what the engine computes. Everything is float32, except that weights hold
the values of their published encodings and activations are rounded through FP8 or FP4
where the model was trained with that rounding. Needs numpy only.

    python3 reference.py CHECKPOINT_DIR 17 4 251        # next-token logits after these ids

Shapes: T tokens, D hidden_size, H heads, d head_dim, S hc streams, E experts.
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np

from number_formats import FP4_VALUES, bf16_decode, fp8_decode, fp8_encode

F32 = np.float32
ROUND_ACTIVATIONS = True           # False: no FP8/FP4 rounding of activations, for smooth comparisons
NO_TOKEN = -1                      # an Engram history entry no n-gram may span


# ---------------------------------------------------------------- checkpoint

class Checkpoint:
    """Published safetensors shards; a tensor is returned as its float32 values."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.text = self.config["text_config"]
        self.entries = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            raw = np.memmap(path, np.uint8, "r")
            size = struct.unpack("<Q", raw[:8].tobytes())[0]
            for name, entry in json.loads(raw[8:8 + size].tobytes()).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self.entries[name] = (entry["dtype"], entry["shape"], raw[8 + size:][begin:end])

    def __contains__(self, name):
        return name in self.entries

    def __getitem__(self, name):
        dtype, shape, raw = self.entries[name]
        if dtype == "F32":
            return raw.view(F32).reshape(shape)
        if dtype == "BF16":
            return bf16_decode(raw.view(np.uint16)).reshape(shape)
        if dtype == "F8_E8M0":
            return np.exp2(raw.reshape(shape).astype(F32) - 127)
        scale = self[name.removesuffix("weight") + "scale"]
        if dtype == "F8_E4M3":
            value = fp8_decode(raw).reshape(shape)
            if scale.shape[0] != shape[0]:                      # one scale per 32x32 tile
                scale = np.repeat(scale, 32, 0)[:shape[0]]
        elif dtype == "I8":                                     # two FP4 codes a byte, low nibble first
            byte = raw.view(np.uint8).reshape(shape)
            value = FP4_VALUES[np.stack([byte & 15, byte >> 4], -1)].reshape(shape[0], -1)
        else:
            raise ValueError(f"{name}: unknown dtype {dtype}")
        return value * np.repeat(scale, 32, 1)[:, :value.shape[1]]

    def rows(self, name, index):
        """Rows `index` of an FP8 table with one scale per row and 32 columns."""
        _, shape, raw = self.entries[name + ".weight"]
        _, scale_shape, scale = self.entries[name + ".scale"]
        value = fp8_decode(raw.reshape(shape)[index])
        return value * np.repeat(np.exp2(scale.reshape(scale_shape)[index].astype(F32) - 127), 32, -1)


# ---------------------------------------------------------------- small pieces

def rms_norm(x, weight, eps):
    y = x * (1 / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=F32) + F32(eps)))
    return y if weight is None else y * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x * sigmoid(x)


def _power_of_two_at_least(x):
    """The smallest power of two >= x > 0."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(F32(1), np.where(mantissa == .5, exponent - 1, exponent)).astype(F32)


def _blocks(x, size):
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def round_fp8(x):
    """FP8 E4M3 values with one power-of-two scale per 32 columns."""
    if not ROUND_ACTIVATIONS:
        return x
    b = _blocks(x, 32)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), F32(1e-4))
    scale = _power_of_two_at_least(amax * F32(1 / 448))
    q = fp8_decode(fp8_encode(np.clip(b / scale, -448, 448)))
    return (q * scale).reshape(x.shape)


def _nearest_fp4(x):
    """Nearest FP4 E2M1 value, ties to the even code; the sign of a zero doesn't matter."""
    mag = np.abs(x)
    code = sum((mag > t).astype(int) for t in (.25, 1.25, 2.5, 5.))
    code = code + sum((mag >= t).astype(int) for t in (.75, 1.75, 3.5))
    return np.sign(x) * FP4_VALUES[code]


def round_fp4(x):
    """FP4 values with one power-of-two scale per 32 columns (index queries and keys)."""
    if not ROUND_ACTIVATIONS:
        return x
    b = _blocks(x, 32)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), F32(6 * 2.0 ** -126))
    scale = _power_of_two_at_least(amax * F32(1 / 6))
    return (_nearest_fp4(np.clip(b / scale, -6, 6)) * scale).reshape(x.shape)


def round_fp4_fine(x):
    """FP4 values with one FP8 E4M3 scale per 16 columns (compressed KV)."""
    if not ROUND_ACTIVATIONS:
        return x
    b = _blocks(x, 16)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), F32(6 * 2.0 ** -9))
    scale = fp8_decode(fp8_encode(np.minimum(amax / F32(6), F32(448))))
    return (_nearest_fp4(np.clip(b / scale, -6, 6)) * scale).reshape(x.shape)


def top_k(scores, k):
    """Column indices of the k largest scores of each row, by position; ties go to the lower index."""
    order = np.argsort(-scores, -1, kind="stable")[..., :k]
    return np.sort(order, -1)


class Rope:
    """Rotary tables. Adjacent pairs of the last `dims` columns of a head are rotated."""

    def __init__(self, dims, theta, yarn=None):
        freq = F32(1) / np.array([theta ** (i / dims) for i in range(0, dims, 2)], F32)
        if yarn:
            def turns_to_dim(turns):
                length = yarn["original_max_position_embeddings"]
                return dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
            low = max(math.floor(turns_to_dim(yarn["beta_fast"])), 0)
            high = min(math.ceil(turns_to_dim(yarn["beta_slow"])), dims - 1)
            ramp = (np.arange(dims // 2, dtype=F32) - low) / max(high - low, 1e-3)
            keep = 1 - np.clip(ramp, 0, 1)
            freq = freq / yarn["factor"] * (1 - keep) + freq * keep
        self.dims, self.freq = dims, freq.astype(F32)

    def __call__(self, x, positions, inverse=False):
        """x [T, ..., d], positions [T]. The angle is the float32 product position * freq, rounded to
        float32; only its sine and cosine are taken more exactly (matters at long positions)."""
        angle = (np.asarray(positions, F32)[:, None] * self.freq).astype(np.float64)
        turn = np.exp(1j * (-angle if inverse else angle)).astype(np.complex64)
        turn = turn.reshape(len(turn), *[1] * (x.ndim - 2), -1)
        pairs = np.ascontiguousarray(x[..., -self.dims:], F32).view(np.complex64) * turn
        return np.concatenate([x[..., :-self.dims], pairs.view(F32)], -1)


def attend(q, rows, visible, sink):
    """Softmax attention with one shared key/value row per position and a sink logit per head.

    q [T, H, d], rows [T, K, d], visible [T, K] -> [T, H, d]
    """
    scores = np.einsum("thd,tkd->thk", q, rows) * F32(q.shape[-1] ** -.5)
    scores = np.where(visible[:, None], scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink[None, :, None])
    weight = np.exp(scores - top)
    total = weight.sum(-1, keepdims=True) + np.exp(sink[None, :, None] - top)
    return np.einsum("thk,tkd->thd", weight / total, rows)


# ---------------------------------------------------------------- state of one sequence

class State:
    """All that later tokens need of earlier ones."""

    def __init__(self, config):
        n = config["num_hidden_layers"]
        self.length = 0
        self.window = [np.zeros((0, config["head_dim"]), F32)] * n    # FP8 rows, last `sliding_window`
        self.cached = 0         # positions whose latent and index rows came from a prefix cache
        self.waiting = None     # with a tail: the last source layer's inputs not run yet (see forward)
        self.latent = {}        # kv source layer -> [groups, d] rotated FP4 rows
        self.index_key = {}     # kv source layer -> [groups, index_head_dim] FP4 rows
        self.open_group = {}    # kv source layer -> (kv, gate) rows of a group not full yet
        self.history = np.zeros(0, np.int64)                          # Engram ids seen so far

    def restore(self, model, other, length, replay, ids, embeddings=None):
        """Become the state a prefix cache can give back for the first `length` tokens of `other`.

        The cache holds latent and index rows only. Window rows come back by running the last
        `replay` tokens again, each window beginning at the first replayed token: exact when
        replay covers layers * (sliding_window - 1) tokens or the whole prefix, else approximate.
        `length` and `replay` are multiples of every compress ratio: a group cut in two isn't cached,
        so a hit of odd length is shortened to the group's edge.
        """
        ratios = model.c["compress_ratios"]
        assert all(length % r == 0 and min(replay, length) % r == 0 for r in ratios if r)
        self.latent = {layer: rows[:length // ratios[layer]] for layer, rows in other.latent.items()}
        self.index_key = {layer: rows[:length // ratios[layer]] for layer, rows in other.index_key.items()}
        self.cached, self.length = length, length - min(replay, length)
        self.history = other.history[:self.length]
        model.forward(ids[self.length:length], self,
                      None if embeddings is None else embeddings[self.length:length])


class Handoff:
    """What a source layer leaves for the layers above it within one forward pass."""
    latent = index_key = chosen = candidates = None


# ---------------------------------------------------------------- the model

class Model:
    def __init__(self, folder):
        self.w = Checkpoint(folder)
        self.c = c = self.w.text
        self.image_token = self.w.config.get("image_token_id")
        self.eps = c["rms_norm_eps"]
        self.plain_rope = Rope(c["qk_rope_head_dim"], c["rope_theta"])
        self.long_rope = Rope(c["qk_rope_head_dim"], c["compress_rope_theta"], c["rope_scaling"])
        self.engram = EngramHash(c, folder) if c["engram_layer_ids"] else None

    # -- linear layers: FP8 and FP4 weights take FP8-rounded inputs, BF16 weights do not
    def quantized(self, name, x):
        return round_fp8(x) @ self.w[name + ".weight"].T

    def plain(self, name, x):
        return x @ self.w[name + ".weight"].T

    def norm(self, name, x):
        return rms_norm(x, self.w[name + ".weight"], self.eps)

    # -- residual streams (hyper-connections)
    def mix_coefficients(self, prefix, streams):
        """streams [T, S, D] -> pre [T, S], post [T, S], comb [T, S, S]."""
        c, s = self.c, self.c["hc_mult"]
        flat = rms_norm(streams.reshape(len(streams), -1), None, self.eps)
        mix = flat @ self.w[prefix + "_fn"].T
        scale, base = self.w[prefix + "_scale"], self.w[prefix + "_base"]
        eps = F32(c["hc_eps"])
        pre = sigmoid(mix[:, :s] * scale[0] + base[:s]) + eps
        post = 2 * sigmoid(mix[:, s:2 * s] * scale[1] + base[s:2 * s])
        comb = softmax((mix[:, 2 * s:] * scale[2] + base[2 * s:]).reshape(-1, s, s)) + eps
        comb = comb / (comb.sum(-2, keepdims=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(-1, keepdims=True) + eps)
            comb = comb / (comb.sum(-2, keepdims=True) + eps)
        return pre, post, comb

    @staticmethod
    def collapse(streams, pre):
        return (pre[..., None] * streams).sum(1)

    @staticmethod
    def expand(x, streams, post, comb):
        return post[..., None] * x[:, None] + np.einsum("tij,tid->tjd", comb, streams)

    # -- attention
    def queries(self, prefix, x, rope, positions):
        c = self.c
        latent_q = self.norm(prefix + ".q_norm", self.quantized(prefix + ".wq_a", x))
        q = self.quantized(prefix + ".wq_b", latent_q)
        return latent_q, rope(q.reshape(len(x), c["num_attention_heads"], -1), positions)

    def window_rows(self, prefix, x, rope, positions):
        kv = self.norm(prefix + ".kv_norm", self.quantized(prefix + ".wkv", x))
        return round_fp8(rope(kv, positions))

    def attention_output(self, prefix, out, rope, positions):
        c = self.c
        out = rope(out, positions, inverse=True).reshape(len(out), c["o_groups"], -1)
        wo_a = self.w[prefix + ".wo_a.weight"].reshape(c["o_groups"], c["o_lora_rank"], -1)
        return self.quantized(prefix + ".wo_b", np.einsum("tgi,goi->tgo", out, wo_a).reshape(len(out), -1))

    def write_rows(self, layer, x, positions, state, handoff):
        """Append the window rows, and on a kv source the latent rows, of x [T, D] at `positions`."""
        prefix = f"layers.{layer}.attn"
        ratio = self.c["compress_ratios"][layer]
        rows = self.window_rows(prefix, x, self.long_rope if ratio else self.plain_rope, positions)
        state.window[layer] = np.concatenate([state.window[layer], rows])
        if ratio and layer in self.c["kv_source_layer_ids"]:
            self.compress(layer, x, positions, state, handoff)

    def attention(self, layer, x, positions, state, handoff):
        """x [T, D] at `positions`, whose rows are written: [T, D]."""
        c, prefix = self.c, f"layers.{layer}.attn"
        ratio = c["compress_ratios"][layer]
        rope = self.long_rope if ratio else self.plain_rope
        window = state.window[layer]
        row_position = positions[-1] + 1 - len(window) + np.arange(len(window))
        latent_q, q = self.queries(prefix, x, rope, positions)
        seen = (row_position <= positions[:, None]) & (row_position > positions[:, None] - c["sliding_window"])
        rows = np.broadcast_to(window, (len(x), *window.shape))

        if ratio:
            if layer in c["index_source_layer_ids"]:
                handoff.chosen = self.choose(layer, x, latent_q, positions, handoff)
            chosen = handoff.chosen
            if chosen.shape[1]:
                rows = np.concatenate([rows, handoff.latent[np.maximum(chosen, 0)]], 1)
                seen = np.concatenate([seen, chosen >= 0], 1)
        out = attend(q, rows, seen, self.w[prefix + ".attn_sink"])
        return self.attention_output(prefix, out, rope, positions)

    def compress(self, layer, x, positions, state, handoff):
        """Append the latent row (and index key) of every group of `ratio` tokens that is now full."""
        c, prefix = self.c, f"layers.{layer}.attn"
        ratio = c["compress_ratios"][layer]
        done = state.latent.get(layer, np.zeros((0, c["head_dim"]), F32))
        keys = state.index_key.get(layer, np.zeros((0, c["index_head_dim"]), F32))
        if positions[0] < state.cached:
            assert positions[-1] < state.cached, "replay must stop where the cached rows end"
            handoff.latent, handoff.index_key = done, keys
            return
        kv = self.plain(prefix + ".compressor.wkv", x)
        if ratio > 1:
            gate = self.plain(prefix + ".compressor.wgate", x)
            old_kv, old_gate = state.open_group.get(layer, (kv[:0], gate[:0]))
            kv, gate = np.concatenate([old_kv, kv]), np.concatenate([old_gate, gate])
            full = len(kv) // ratio * ratio
            state.open_group[layer] = kv[full:], gate[full:]
            share = kv[:full].reshape(-1, ratio, kv.shape[1])
            weight = softmax(gate[:full].reshape(share.shape).swapaxes(1, 2)).swapaxes(1, 2)
            kv = (share * weight).sum(1)
        if len(kv):
            latent = self.norm(prefix + ".compressor.norm", kv)
            at = (len(done) + np.arange(len(latent))) * ratio
            key = self.norm(prefix + ".indexer.k_norm", self.plain(prefix + ".indexer.wk", latent))
            keys = np.concatenate([keys, round_fp4(self.long_rope(key, at))])
            done = np.concatenate([done, round_fp4_fine(self.long_rope(latent, at))])
        state.latent[layer], state.index_key[layer] = done, keys
        handoff.latent, handoff.index_key = done, keys

    def choose(self, layer, x, latent_q, positions, handoff):
        """The index_topk best latent rows of each query, by position, -1 where there are fewer."""
        c, prefix = self.c, f"layers.{layer}.attn.indexer"
        ratio, keys = c["compress_ratios"][layer], handoff.index_key
        heads, width = c["index_n_heads"], c["index_head_dim"]
        q = self.quantized(prefix + ".wq_b", latent_q).reshape(len(x), heads, width)
        q = round_fp4(self.long_rope(q, positions))
        weight = self.plain(prefix + ".weights_proj", x) * F32(width ** -.5 * heads ** -.5)
        scores = np.maximum(np.einsum("thd,kd->thk", q, keys), 0)
        scores = np.einsum("thk,th->tk", scores, weight)
        count = (positions + 1) // ratio                       # groups that end at or before the query
        scores = np.where(np.arange(len(keys)) < count[:, None], scores, -np.inf)

        source = c["candidate_source_layer_id"]
        if layer == source:
            handoff.candidates = self.candidates(scores, count)
        elif 0 <= source < layer:
            scores = np.where(handoff.candidates, scores, -np.inf)
        chosen = top_k(scores, min(c["index_topk"], len(keys)))
        return np.where(np.take_along_axis(scores, chosen, 1) > -np.inf, chosen, -1)

    def candidates(self, scores, count):
        """Mask of the rows inside the best blocks of each query; its newest block always counts."""
        c = self.c
        size, limit = c["candidate_block_size"], c["candidate_topk_blocks"]
        padded = np.pad(scores, ((0, 0), (0, -scores.shape[1] % size)), constant_values=-np.inf)
        best = padded.reshape(len(scores), -1, size).max(-1)
        newest = np.arange(best.shape[1]) == ((count - 1) // size)[:, None]
        kept = top_k(np.where(newest, np.inf, best), min(limit, best.shape[1]))
        mask = np.zeros(best.shape, bool)
        np.put_along_axis(mask, kept, True, 1)
        mask &= best > -np.inf
        return np.repeat(mask, size, 1)[:, :scores.shape[1]]

    # -- experts
    def expert(self, prefix, x, weight=None):
        """SwiGLU with clamped inputs; a routing weight multiplies before the down projection."""
        limit = F32(self.c["swiglu_limit"])
        gate = np.minimum(self.quantized(prefix + ".w1", x), limit)
        up = np.clip(self.quantized(prefix + ".w3", x), -limit, limit)
        hidden = silu(gate) * up
        return self.quantized(prefix + ".w2", hidden if weight is None else hidden * weight[:, None])

    def route(self, prefix, x, is_image, k):
        """Experts and weights of each token: [T, k] and [T, k]."""
        c = self.c
        scores = np.sqrt(np.logaddexp(F32(0), x @ self.w[prefix + ".gate.weight"].T))
        bias = np.where(is_image[:, None], self.w[prefix + ".gate.bias_vl"], self.w[prefix + ".gate.bias"])
        chosen = top_k(scores + bias, k)
        weight = np.take_along_axis(scores, chosen, 1)
        if c["norm_topk_prob"] and k > 1:
            weight = weight / (weight.sum(1, keepdims=True) + F32(1e-20))
        return chosen, weight * F32(c["routed_scaling_factor"])

    def moe(self, prefix, x, is_image, k):
        chosen, weight = self.route(prefix, x, is_image, k)
        out = self.expert(prefix + ".shared_experts", x)
        for e in np.unique(chosen):
            token, slot = np.nonzero(chosen == e)
            out[token] += self.expert(f"{prefix}.experts.{e}", x[token], weight[token, slot])
        return out

    # -- blocks
    def block(self, prefix, streams, pre, attention, is_image, k):
        """A sublayer collapses with the mix made by the sublayer before it."""
        x = attention(self.norm(prefix + ".attn_norm", self.collapse(streams, pre)))
        next_pre, post, comb = self.mix_coefficients(prefix + ".hc_attn", streams)
        streams = self.expand(x, streams, post, comb)
        last_pre, post, comb = self.mix_coefficients(prefix + ".hc_ffn", streams)
        x = self.norm(prefix + ".ffn_norm", self.collapse(streams, next_pre))
        streams = self.expand(self.moe(prefix + ".ffn", x, is_image, k), streams, post, comb)
        return streams, last_pre

    def start(self, embeddings):
        s = self.c["hc_mult"]
        pre = np.zeros((len(embeddings), s), F32)
        pre[:, 0] = 1
        return np.repeat(embeddings[:, None], s, 1), pre

    def add_engram(self, layer, streams, hashes, is_image):
        """Gated n-gram lookup added to every stream."""
        c, prefix = self.c, f"layers.{layer}.engram"
        s, dim = c["hc_mult"], c["hidden_size"]
        found = self.w.rows(prefix + ".embed", hashes).reshape(len(hashes), -1)
        kv = self.quantized(prefix + ".wkv", found)
        key, value = kv[:, :s * dim].reshape(-1, s, dim), kv[:, s * dim:]
        weight = self.w[prefix + ".q_weight"] * self.w[prefix + ".k_weight"]
        dot = (streams * weight * key).sum(-1) * F32(dim ** -.5)
        dot = dot / np.sqrt((streams ** 2).mean(-1) + F32(self.eps)) / np.sqrt((key ** 2).mean(-1) + F32(self.eps))
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), F32(1e-6))), dot))
        gate = np.where(is_image[:, None], 0, gate)
        return streams + gate[..., None] * value[:, None]

    def forward(self, ids, state, embeddings=None, trace=None, tail=None, last=True):
        """Run tokens `ids` [T] that follow `state`; returns (logits [T, V], main_hidden [T, 3D]).

        `embeddings` [T, D] replaces the token embeddings (image spans). `trace`, a dict,
        receives the streams after every layer.

        With `tail` (decoder-side bounded replay; a prompt's prefill uses sliding_window) every token
        leaves its rows up to the last kv source layer, but that layer's attention and all layers
        above run only on the last `tail` tokens of the prompt, however it is cut in chunks: give
        last=False for all chunks but the last, they return (None, None). The last source layer sees
        its true window; the windows of the layers above begin at the tail. Results are for the tail.
        """
        c, ids = self.c, np.asarray(ids)
        positions = state.length + np.arange(len(ids))
        is_image = ids == self.image_token
        hashes = self.engram(ids, is_image, state) if self.engram else None
        x = self.w["embed.weight"][ids] if embeddings is None else embeddings
        streams, pre = self.start(x)
        state.length += len(ids)
        handoff, main, last_source = Handoff(), [], max(c["kv_source_layer_ids"])
        for layer in range(c["num_hidden_layers"]):
            if layer in c["engram_layer_ids"]:
                streams = self.add_engram(
                    layer, streams, hashes[:, c["engram_layer_ids"].index(layer)], is_image)
            if layer in c.get("dspark_target_layer_ids", ()):
                main.append(streams.mean(1))
            prefix, keep = f"layers.{layer}", c["sliding_window"]
            attended = self.norm(prefix + ".attn_norm", self.collapse(streams, pre))
            self.write_rows(layer, attended, positions, state, handoff)
            if tail and layer == last_source:
                held = (streams, pre, is_image, positions)
                if state.waiting:
                    held = [np.concatenate(pair) for pair in zip(state.waiting, held)]
                streams, pre, is_image, positions = (part[-tail:] for part in held)
                state.waiting = None if last else (streams, pre, is_image, positions)
                if not last:
                    state.window[layer] = state.window[layer][-(tail + keep):]
                    return None, None
                for upper in range(layer + 1, c["num_hidden_layers"]):
                    state.window[upper] = state.window[upper][:0]
            streams, pre = self.block(
                prefix, streams, pre,
                lambda y, layer=layer: self.attention(layer, y, positions, state, handoff),
                is_image, c["num_experts_per_tok"])
            state.window[layer] = state.window[layer][-keep:]
            if trace is not None:
                trace[layer] = streams
        hidden = self.norm("norm", self.collapse(streams, pre))
        return hidden @ self.w["head.weight"].T, np.concatenate(main, 1) if main else None

    # -- vision
    def encode_image(self, patches, rows, cols):
        """patches [rows*cols, 3*patch*patch] -> embeddings [ceil(rows/r)*ceil(cols/r), D]."""
        v = self.w.config["vision_config"]
        heads, dim = v["num_attention_heads"], v["hidden_size"]
        width = dim // heads
        freq = 1 / v["rope_theta"] ** (np.arange(0, width // 2, 2, dtype=F32) / F32(width // 2))
        at = np.stack(np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij"), -1).reshape(-1, 2, 1)
        angle = (at * freq).reshape(rows * cols, -1).astype(F32)[:, None]

        def linear(name, x):
            y = x @ self.w[name + ".weight"].T
            return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

        def rotate(x):
            a, b = np.split(x, 2, -1)
            return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

        x = linear("vision.patch_embed.proj", patches)
        for i in range(v["num_hidden_layers"]):
            p = f"vision.blocks.{i}"
            y = linear(p + ".attn.wqkv", rms_norm(x, self.w[p + ".norm1.weight"], 1e-6))
            q, k, u = (t.reshape(-1, heads, width) for t in np.split(y, 3, -1))
            weight = softmax(np.einsum("qhd,khd->hqk", rotate(q), rotate(k)) * F32(width ** -.5))
            x = x + linear(p + ".attn.wo", np.einsum("hqk,khd->qhd", weight, u).reshape(len(x), -1))
            gate, up = np.split(linear(p + ".mlp.w1", rms_norm(x, self.w[p + ".norm2.weight"], 1e-6)), 2, -1)
            x = x + linear(p + ".mlp.w2", silu(gate) * up)
        x = rms_norm(x, self.w["vision.norm.weight"], 1e-6)

        r = v["downsample_ratio"]
        grid = np.pad(x.reshape(rows, cols, dim), ((0, -rows % r), (0, -cols % r), (0, 0)))
        h, w = grid.shape[0] // r, grid.shape[1] // r
        x = grid.reshape(h, r, w, r, dim).transpose(0, 2, 4, 1, 3).reshape(h * w, -1)
        x = linear("aligner.w1", x)
        erf = np.vectorize(math.erf)
        return linear("aligner.w2", (x * .5 * (1 + erf(x / math.sqrt(2)))).astype(F32))


class EngramHash:
    """Hash ids of the n-grams that end at each token."""

    def __init__(self, c, folder):
        self.c = c
        self.token_map = np.array(json.loads((pathlib.Path(folder) / "engram_token_map.json").read_text()))
        taken, primes, offsets = set(), [], []
        for _ in c["engram_layer_ids"]:
            sizes = []
            for _ in range(c["engram_max_ngram_size"] - 1):
                prime = c["engram_vocab_size"] - 1
                for _ in range(c["engram_n_heads"]):
                    prime = self.next_prime(prime, taken)
                    taken.add(prime)
                    sizes.append(prime)
            primes.append(sizes)
            offsets.append(np.cumsum([0] + sizes[:-1]))
        self.primes, self.offsets = np.array(primes), np.array(offsets)
        bound = max(1, (2 ** 63 - 1) // c["engram_compressed_vocab_size"] // 2)
        self.multipliers = [np.random.default_rng(10007 * layer).integers(
            0, bound, c["engram_max_ngram_size"], np.int64) * 2 + 1 for layer in c["engram_layer_ids"]]

    @staticmethod
    def next_prime(n, taken):
        n += 1
        while n in taken or any(n % d == 0 for d in range(2, math.isqrt(n) + 1)):
            n += 1
        return n

    def __call__(self, ids, is_image, state):
        """[T] ids -> [T, Engram layers, (max_ngram - 1) * heads] table rows."""
        c, pad = self.c, self.token_map[self.c["engram_pad_token_id"]]
        past = len(state.history)
        state.history = np.concatenate([state.history, np.where(is_image, NO_TOKEN, self.token_map[ids])])
        out = np.zeros((len(ids), *self.primes.shape), np.int64)
        for t in range(len(ids)):
            gram, blocked = [], False
            for back in range(c["engram_max_ngram_size"]):
                at = past + t - back
                blocked = blocked or at < 0 or state.history[at] == NO_TOKEN
                gram.append(pad if blocked else state.history[at])
            for layer, multiplier in enumerate(self.multipliers):
                value, column = gram[0] * multiplier[0], 0
                for back in range(1, c["engram_max_ngram_size"]):
                    value = value ^ (gram[back] * multiplier[back])
                    for _ in range(c["engram_n_heads"]):
                        out[t, layer, column] = value % self.primes[layer, column]
                        column += 1
        return out + self.offsets


# ---------------------------------------------------------------- speculative drafts

class Drafter:
    """DSpark: proposes the next `dspark_block_size` tokens in one pass."""

    def __init__(self, model):
        self.m, self.c = model, model.c
        self.stages = self.c["n_mtp_layers"]
        self.context = [np.zeros((0, self.c["head_dim"]), F32)] * self.stages
        self.length = 0                                # positions fed so far

    def feed(self, main_hidden):
        """Append the window rows of accepted positions; main_hidden [T, 3D]."""
        m = self.m
        x = m.norm("mtp.0.main_norm", m.quantized("mtp.0.main_proj", main_hidden))
        positions = self.length + np.arange(len(x))
        for s in range(self.stages):
            rows = m.window_rows(f"mtp.{s}.attn", x, m.plain_rope, positions)
            self.context[s] = np.concatenate([self.context[s], rows])[-self.c["sliding_window"]:]
        self.length += len(x)

    def draft(self, token, choose=np.argmax):
        """Drafts after `token`, which sits at position `length` and was not fed yet.

        Returns ids [B], logits [B, V] and the estimated acceptance probability [B].
        """
        m, c = self.m, self.c
        size = c["dspark_block_size"]
        positions = self.length + np.arange(size)
        ids = np.array([token] + [c["dspark_noise_token_id"]] * (size - 1))
        streams, pre = m.start(m.w["embed.weight"][ids])
        for s in range(self.stages):
            prefix = f"mtp.{s}"

            def attention(x, prefix=prefix, context=self.context[s]):
                a = prefix + ".attn"
                _, q = m.queries(a, x, m.plain_rope, positions)
                rows = np.concatenate([context, m.window_rows(a, x, m.plain_rope, positions)])
                rows = np.broadcast_to(rows, (size, *rows.shape))
                out = attend(q, rows, np.ones(rows.shape[:2], bool), m.w[a + ".attn_sink"])
                return m.attention_output(a, out, m.plain_rope, positions)

            streams, pre = m.block(prefix, streams, pre, attention, np.zeros(size, bool),
                                   c["dspark_num_experts_per_tok"])
        last = f"mtp.{self.stages - 1}"
        hidden = m.collapse(streams, pre)
        logits = m.norm(last + ".norm", hidden) @ m.w["head.weight"].T
        out, sure, previous = [], [], token
        for i in range(size):
            markov = m.w[last + ".markov_head.embed.weight"][previous]
            logits[i] += m.w[last + ".markov_head.head.weight"] @ markov
            sure.append(sigmoid(m.w[last + ".confidence_head.proj.weight"][0] @ np.concatenate([hidden[i], markov])))
            previous = int(choose(logits[i]))
            out.append(previous)
        return np.array(out), logits, np.array(sure)


if __name__ == "__main__":
    model = Model(sys.argv[1])
    result, _ = model.forward([int(i) for i in sys.argv[2:]], State(model.c))
    for token in np.argsort(-result[-1])[:10]:
        print(f"{token:7d} {result[-1, token]:9.4f}")
