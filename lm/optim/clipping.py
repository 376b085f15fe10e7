"""Clipping of updates: what one matrix is moved by at most (Shazeer and Stern 2018, section 6)."""

import jax
import jax.numpy as jnp
import optax

from lm.model.spec import ParamSpec, Table


def clip_update(limit: float, table: Table) -> optax.GradientTransformation:
    """Returns updates divided by max(1, RMS / limit), the RMS of each layer's parameter alone."""

    def clipped(row: ParamSpec, u: jax.Array) -> jax.Array:
        own = tuple(range(row.matrix_start, len(row.shape)))
        rms = jnp.sqrt((u * u).mean(own, keepdims=True))
        return u / jnp.maximum(1.0, rms / limit)

    return optax.stateless(
        lambda updates, _: jax.tree.map(
            clipped, table, updates, is_leaf=lambda x: isinstance(x, ParamSpec)
        )
    )
