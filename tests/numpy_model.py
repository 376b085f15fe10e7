"""The forward pass once more, in NumPy float64 with loops, from the papers' equations.

Nothing here is shared with lm/model: what agrees with it is right for two reasons.
Parameters are the nested dict of the model: block parameters with a leading layer axis.
"""

import math
from typing import Any

import numpy as np
from scipy.special import erf

from lm.config import ModelConfig


def forward(m: ModelConfig, params: Any, tokens, segments=None, positions=None):
    """Returns (last hidden state [B, T, D], logits [B, T, V] of the unpadded vocabulary)."""
    tokens = np.asarray(tokens)
    if positions is None:
        positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    if segments is None:
        segments = np.zeros_like(tokens)
    p = _float64(params)
    rows = [_row(m, p, *rows) for rows in zip(tokens, np.asarray(segments), positions, strict=True)]
    hidden = np.stack(rows)
    head = p["embedding"] if m.tie_embeddings else p["head"]
    return hidden, hidden @ head[: m.vocab_size].T


def loss(m: ModelConfig, params: Any, tokens, targets, weights, segments=None, positions=None):
    """Returns the sum over tokens of weight * -log softmax(logits)[target], in nats."""
    _, logits = forward(m, params, tokens, segments, positions)
    total = 0.0
    for b, t in np.ndindex(np.shape(targets)):
        x = logits[b, t]
        log_z = x.max() + math.log(np.exp(x - x.max()).sum())
        total += weights[b, t] * (log_z - x[targets[b, t]])
    return total


def _float64(tree):
    if isinstance(tree, dict):
        return {k: _float64(v) for k, v in tree.items()}
    return np.asarray(tree, np.float64)


def _row(m: ModelConfig, p, tokens, segments, positions):
    x = p["embedding"][tokens]
    for n in range(2, m.ngram_order + 1):
        x = x + p["ngrams"][ngram_rows(tokens, positions, n, m.ngram_rows)]
    if m.position == "learned":
        x = x + p["positions"][positions]
    if m.position == "sinusoidal":
        x = x * math.sqrt(m.d_model) + sinusoids(m.d_model, positions)
    for i in range(m.n_layers):
        block = {part: {k: v[i] for k, v in group.items()} for part, group in p["blocks"].items()}
        for name, branch in (("attention", _attention), ("ffn", _ffn)):
            norm = block[f"{name}_norm"]
            if m.norm_position == "pre":  # Xiong et al. 2020
                x = x + branch(m, block[name], _norm(m, norm, x), segments, positions)
            else:  # Vaswani et al. 2017
                x = _norm(m, norm, x + branch(m, block[name], x, segments, positions))
    return _norm(m, p["final_norm"], x) if m.norm_position == "pre" else x


def ngram_rows(tokens, positions, n, n_rows):
    """The row of the n-gram that ends in each token, one Python integer after another."""
    rows = []
    for t, place in enumerate(positions):
        h = int(tokens[t])
        for back in range(1, n):
            h = (murmur(h) + (int(tokens[t - back]) + 1 if place >= back else 0)) % 2**32
        rows.append(murmur(h) % n_rows)
    return rows


def murmur(h):
    """MurmurHash3's fmix32 (Appleby 2011)."""
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def _norm(m: ModelConfig, p, x):
    if m.norm == "layernorm":
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + m.norm_eps)
        return y * p["scale"] + p.get("bias", 0.0)
    return _rms(x, m.norm_eps) * p["scale"]


def _rms(x, eps):
    return x / np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1] + eps)


def _attention(m: ModelConfig, p, x, segments, positions):
    n_tokens, shared = len(x), m.n_heads // m.kv_heads
    out = np.zeros_like(x)
    for n in range(m.n_heads):
        k = n // shared
        q_TH = x @ p["query"][:, n]
        k_TH, v_TH = x @ p["key"][:, k], x @ p["value"][:, k]
        if m.use_bias:
            q_TH = q_TH + p["query_bias"][n]
            k_TH, v_TH = k_TH + p["key_bias"][k], v_TH + p["value_bias"][k]
        if m.qk_norm:
            q_TH = _rms(q_TH, m.norm_eps) * p["query_norm"]
            k_TH = _rms(k_TH, m.norm_eps) * p["key_norm"]
        if m.position == "rope":
            q_TH, k_TH = rotate(m, q_TH, positions), rotate(m, k_TH, positions)
        for t in range(n_tokens):
            seen = [s for s in range(t + 1) if segments[s] == segments[t]]
            e = np.exp(k_TH[seen] @ q_TH[t] / math.sqrt(m.head_dim))
            out[t] += (e / e.sum()) @ v_TH[seen] @ p["out"][n]
    return out + p["out_bias"] if m.use_bias else out


def rotate(m: ModelConfig, x_TH, positions):
    """Su et al. 2021, eq. 34: pair (h, h + H/2) is a complex number, turned by its angle."""
    half = x_TH.shape[-1] // 2
    turned = (x_TH[:, :half] + 1j * x_TH[:, half:]) * np.exp(
        1j * np.asarray(positions)[:, None] * frequencies(m)
    )
    if m.rope_scaling == "yarn":  # Peng et al. 2023, eq. 22: sqrt(1 / t)
        turned = turned * (0.1 * math.log(m.rope_factor) + 1.0)
    return np.concatenate([turned.real, turned.imag], -1)


def frequencies(m: ModelConfig):
    """Radians a position of each pair, [H/2]."""
    h, s = m.head_dim, m.rope_factor
    found = []
    for d in range(h // 2):
        base = m.rope_base
        if m.rope_scaling == "ntk":  # bloc97 2023
            base = base * s ** (h / (h - 2))
        theta = base ** (-2.0 * d / h)
        if m.rope_scaling == "linear":  # Chen et al. 2023, eq. 4
            theta = theta / s
        if m.rope_scaling == "yarn":
            gamma = _yarn_share_kept(m, d)
            theta = (1 - gamma) * theta / s + gamma * theta  # Peng et al. 2023, eq. 13
        found.append(theta)
    return np.array(found)


def _yarn_share_kept(m: ModelConfig, d: int) -> float:
    """1 for pairs of 32 turns and more over the original length, 0 for at most 1, whole pairs.

    Between, a straight line in the number of the pair, as in the paper's own code.
    """
    original = m.rope_original_length or m.max_length / m.rope_factor

    def pair_with(turns):  # d with original * base^(-2 d / h) = 2 pi turns
        return math.log(original / (2 * math.pi * turns), m.rope_base) * m.head_dim / 2

    first = max(math.floor(pair_with(32)), 0)
    last = math.ceil(pair_with(1))
    if d <= first:
        return 1.0
    return max(0.0, (last - d) / (last - first)) if last > first else 0.0


def sinusoids(width: int, positions):
    """Vaswani et al. 2017, section 3.5, with all sines before all cosines."""
    table = np.zeros((len(positions), width))
    for t, position in enumerate(positions):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            table[t, i], table[t, width // 2 + i] = math.sin(angle), math.cos(angle)
    return table


def _ffn(m: ModelConfig, p, x, segments, positions):
    act = {
        "swiglu": lambda z: z / (1 + np.exp(-m.swish_c * z)),
        "swish": lambda z: z / (1 + np.exp(-m.swish_c * z)),
        "geglu": lambda z: z * (1 + erf(z / math.sqrt(2))) / 2,
        "gelu": lambda z: z * (1 + erf(z / math.sqrt(2))) / 2,
        "reglu": lambda z: np.maximum(z, 0),
        "relu": lambda z: np.maximum(z, 0),
        "glu": lambda z: 1 / (1 + np.exp(-z)),
        "bilinear": lambda z: z,
    }[m.ffn]
    up = x @ p["up"] + p.get("up_bias", 0.0)
    if m.ffn in ("relu", "gelu", "swish"):
        h = act(up)
    else:
        h = act(x @ p["gate"] + p.get("gate_bias", 0.0)) * up
    return h @ p["down"] + p.get("down_bias", 0.0)
