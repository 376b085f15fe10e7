"""Feed-forward layers: plain act(x W1) W2 and the gated family of Shazeer 2020 (arXiv 2002.05202).

Gated: (act(x W_gate + b) * (x W_up + c)) W_down, act one of sigmoid (GLU), identity (bilinear),
ReLU (ReGLU), GELU (GEGLU), Swish (SwiGLU). A new variant is one entry of ACTIVATIONS.
"""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from lm.config import ModelConfig
from lm.model.linear import linear
from lm.model.spec import ParamSpec, Table


def swish(x: jax.Array, c: float) -> jax.Array:
    """Returns x sigmoid(c x) (Ramachandran et al. 2017); c = 1 is SiLU."""
    return x * jax.nn.sigmoid(x if c == 1.0 else c * x)


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """Returns x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016).

    The derivative Phi(x) + x phi(x) is written out: JAX 0.12's own rule for erfc does not trace
    inside shard_map with checked types.
    """
    return 0.5 * x * jax.lax.erfc(-x * math.sqrt(0.5))


@gelu.defjvp
def _gelu_jvp(x: tuple[jax.Array], dx: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    cdf = 0.5 * jax.lax.erfc(-x[0] * math.sqrt(0.5))
    pdf = jnp.exp(-0.5 * x[0] * x[0]) / math.sqrt(2 * math.pi)
    return x[0] * cdf, (cdf + x[0] * pdf) * dx[0]


# name -> act(x, swish_c)
ACTIVATIONS: Mapping[str, Callable[[jax.Array, float], jax.Array]] = {
    "swiglu": lambda x, c: swish(x, c),
    "geglu": lambda x, c: gelu(x),
    "reglu": lambda x, c: jax.nn.relu(x),
    "glu": lambda x, c: jax.nn.sigmoid(x),
    "bilinear": lambda x, c: x,
    "relu": lambda x, c: jax.nn.relu(x),
    "gelu": lambda x, c: gelu(x),
    "swish": lambda x, c: swish(x, c),
}


def table(m: ModelConfig, out_std: float) -> Table:
    """Returns the rows of one FFN; out_std is the deviation of the residual output."""
    d, f = m.d_model, m.ff_dim
    rows = {"up": ParamSpec((d, f), ("embed", "ff"), std=m.init_std)}
    if m.gated:
        rows["gate"] = ParamSpec((d, f), ("embed", "ff"), std=m.init_std)
    rows["down"] = ParamSpec((f, d), ("ff", "embed"), std=out_std)
    if m.use_bias:
        rows |= {f"{n}_bias": ParamSpec((f,), ("ff",)) for n in ("up", "gate") if n in rows}
        rows["down_bias"] = ParamSpec((d,), ("embed",))
    return rows


def feed_forward(
    m: ModelConfig, p: Mapping[str, jax.Array], x_BTD: jax.Array, product: str = "compute"
) -> jax.Array:
    """Returns the FFN's output [B, T, D] in x's dtype, of these columns and before the bias."""
    act = ACTIVATIONS[m.ffn]
    h_BTF = linear(x_BTD, p["up"], p.get("up_bias"), product=product)
    if m.gated:
        gate_BTF = linear(x_BTD, p["gate"], p.get("gate_bias"), product=product)
        h_BTF = act(gate_BTF, m.swish_c) * h_BTF
    else:
        h_BTF = act(h_BTF, m.swish_c)
    return linear(h_BTF, p["down"], product=product)
