"""Two optimizers in one train step, compiled once for both: the state says which one counts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lm.optim.build import Optimizer


class Either(NamedTuple):
    second: jax.Array  # whether it is the second's updates that are made
    states: tuple[Any, Any]


def either(first: Optimizer, second: Optimizer) -> Optimizer:
    """Returns an optimizer that is the first; with `second` true in its state, the second."""
    both = (first, second)

    def init(params) -> Either:
        return Either(jnp.bool_(False), tuple(tx.init(params) for tx in both))

    def update(grads, state: Either, params):
        made = [tx.update(grads, s, params) for tx, s in zip(both, state.states, strict=True)]
        chosen = lambda a, b: jnp.where(state.second, b, a)
        updates = jax.tree.map(chosen, *(updates for updates, _ in made))
        return updates, Either(state.second, tuple(s for _, s in made))

    return Optimizer(init, update, first.elementwise and second.elementwise, None, None)
