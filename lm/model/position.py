"""Positions: rotary (Su et al. 2021) with length scaling, sinusoidal (Vaswani et al. 2017).

Angles are computed in float64 on the host and kept in float32; only products are cast.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from lm.config import ModelConfig
from lm.precision import wide


def rope_frequencies(m: ModelConfig) -> tuple[np.ndarray, float]:
    """Returns (frequencies [H/2] in radians a position, factor on cos and sin), float64.

    linear: positions divided by the factor (Chen et al. 2023). ntk: the base raised to
    base * factor^(H/(H-2)), so that the slowest pair is stretched by the factor (bloc97 2023).
    yarn: fast pairs kept, slow pairs stretched, a ramp between, and attention sharpened by
    0.1 ln(factor) + 1 on both queries and keys (Peng et al. 2023, arXiv 2309.00071).
    """
    h, base, factor = m.head_dim, m.rope_base, m.rope_factor
    exponents = np.arange(0, h, 2, dtype=np.float64) / h
    if m.rope_scaling == "ntk":
        base = base * factor ** (h / max(h - 2, 1))
    freq = base**-exponents
    if m.rope_scaling == "linear":
        return freq / factor, 1.0
    if m.rope_scaling == "yarn":
        original = m.rope_original_length or m.max_length / factor
        slow, fast = 1.0, 32.0  # fewer turns than `slow`: stretched; more than `fast`: kept

        def pair(n_turns: float) -> float:  # index of the pair that makes so many turns
            return h * math.log(original / (n_turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), h - 1)
        ramp = np.clip((np.arange(h // 2) - low) / max(high - low, 1e-3), 0, 1)
        return freq * (1 - ramp) + freq / factor * ramp, 0.1 * math.log(factor) + 1.0
    return freq, 1.0


def rope_table(m: ModelConfig, dtype=np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Returns (cos, sin), [max_length, H/2]."""
    freq, factor = rope_frequencies(m)
    angles = np.arange(m.max_length, dtype=np.float64)[:, None] * freq
    return (np.cos(angles) * factor).astype(dtype), (np.sin(angles) * factor).astype(dtype)


def rotate(x_BTNH: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Returns x with each pair (h, h + H/2) turned by its position's angle, in x's dtype.

    cos and sin are [T, H/2] or [B, T, H/2].
    """
    x = x_BTNH.astype(wide(x_BTNH.dtype))
    a, b = jnp.split(x, 2, -1)
    cos, sin = (t[..., None, :] if t.ndim == 3 else t[None, :, None, :] for t in (cos, sin))
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x_BTNH.dtype)


def sinusoidal_table(m: ModelConfig) -> np.ndarray:
    """Returns float32 [max_length, D]: sines in the first half of the width, cosines after."""
    exponents = np.arange(m.d_model // 2, dtype=np.float64) / (m.d_model // 2)
    angles = np.arange(m.max_length, dtype=np.float64)[:, None] * 10000.0**-exponents
    return np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32)


def rows(table_TX, tokens_BT: jax.Array, positions_BT: jax.Array | None) -> jax.Array:
    """Returns a table's rows at a batch's positions: [T, ...], or [B, T, ...] where they are
    given."""
    table = jnp.asarray(table_TX)
    return table[: tokens_BT.shape[1]] if positions_BT is None else table[positions_BT]
