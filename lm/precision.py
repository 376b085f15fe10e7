"""Number formats: what sums run in, and products of 8-bit floats (Micikevicius et al. 2022).

float8 rounds the two factors of a product, each tensor scaled by a power of two so that its largest
value fits: e4m3 (3 bits of mantissa, to 448) forward, e5m2 (2 bits, to 57344) for gradients. Sums
are float32. Powers of two change no mantissa, so that how a tensor is split over devices only
matters to values more than 2^15 times smaller than the largest beside them.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2


def wide(dtype) -> jnp.dtype:
    """Returns the dtype that sums, norms and softmax run in: float32, or float64 for checks."""
    return jnp.promote_types(dtype, jnp.float32)


def quantize(x: jax.Array, kind) -> tuple[jax.Array, jax.Array]:
    """Returns (x / scale as `kind`, scale), scale the least power of two under which x fits."""
    x = x.astype(jnp.float32)
    top = jnp.max(jnp.abs(x))
    # frexp: top = m 2^e with m below 1; x / 2^(e - k) is then below 2^k, which the format holds.
    _, exponent = jnp.frexp(jnp.where((top > 0) & (top < jnp.inf), top, 1.0))
    room = 8 if kind == FORWARD else 15
    scale = jnp.ldexp(jnp.float32(1), jnp.clip(exponent - room, -126, 126))
    return (x / scale).astype(kind), scale


@jax.custom_vjp
def float8_product(x_NI: jax.Array, w_IO: jax.Array) -> jax.Array:
    """Returns x w in their dtype, both rounded to e4m3; the gradient's own factor is to e5m2."""
    return _forward(x_NI, w_IO)[0]


def _product(a, b, over: tuple[int, int], dtype) -> jax.Array:
    (qa, scale_a), (qb, scale_b) = a, b
    dims = (((over[0],), (over[1],)), ((), ()))
    y = jax.lax.dot_general(qa, qb, dims, preferred_element_type=jnp.float32)
    return (y * scale_a * scale_b).astype(dtype)


def _forward(x_NI, w_IO):
    x, w = quantize(x_NI, FORWARD), quantize(w_IO, FORWARD)
    return _product(x, w, (1, 0), x_NI.dtype), (x, w)


def _backward(saved, g_NO):
    x, w = saved
    g = quantize(g_NO, BACKWARD)
    return _product(g, w, (1, 1), g_NO.dtype), _product(x, g, (0, 0), g_NO.dtype)


float8_product.defvjp(_forward, _backward)

# How a linear map multiplies its two matrices; those of the compute dtype as they are.
PRODUCTS: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "compute": lambda x_NI, w_IO: x_NI @ w_IO,
    "float8": float8_product,
}
