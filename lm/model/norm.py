"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), statistics in float32."""

import jax
import jax.numpy as jnp

from lm.config import ModelConfig
from lm.model.spec import ParamSpec, Table
from lm.precision import wide


def table(m: ModelConfig) -> Table:
    """Returns the rows of one norm over the model width."""
    rows = {"scale": ParamSpec((m.d_model,), ("embed",), fill=1.0)}
    if m.norm == "layernorm" and m.use_bias:
        rows["bias"] = ParamSpec((m.d_model,), ("embed",))
    return rows


def normalize(kind: str, x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float):
    """Returns x normalised over its last dimension, in x's dtype, computed in float32.

    rmsnorm: x / sqrt(mean(x^2) + eps) * scale; layernorm subtracts the mean first.
    """
    y = x.astype(wide(x.dtype))
    if kind == "layernorm":
        y = y - jnp.mean(y, -1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps) * scale
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype)
