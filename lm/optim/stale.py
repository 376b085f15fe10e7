"""Stale gradients: what asynchronous data-parallel training does to updates (Dean et al. 2012).

A worker that is k updates behind hands in a gradient of the weights as they were k steps ago. Here
every gradient is k steps old, in one process and to the bit, so that the effect can be measured.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class StaleState(NamedTuple):
    seen: jax.Array  # gradients so far
    waiting: tuple  # the last k of them, oldest first
    inner: Any


def stale(tx: optax.GradientTransformation, k: int) -> optax.GradientTransformation:
    """Returns tx given gradients k steps old: at its first k steps nothing moves, tx's own count
    and weight decay included. With k = 0 it is tx itself."""
    if k == 0:
        return tx

    def init(params):
        empty = lambda: jax.tree.map(jnp.zeros_like, params)
        return StaleState(jnp.int32(0), tuple(empty() for _ in range(k)), tx.init(params))

    def update(gradients, state, params=None):
        oldest, *others = state.waiting
        still = lambda g, inner, p: (jax.tree.map(jnp.zeros_like, g), inner)
        updates, inner = jax.lax.cond(
            state.seen >= k, tx.update, still, oldest, state.inner, params
        )
        return updates, StaleState(state.seen + 1, (*others, gradients), inner)

    return optax.GradientTransformation(init, update)
