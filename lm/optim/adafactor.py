"""Adafactor (Shazeer and Stern 2018, arXiv 1804.04235): second moments of a matrix as two vectors.

Without momentum and without its relative step size: the schedule's learning rate counts, as for
every other optimizer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lm.config import OptimConfig
from lm.model.spec import ParamSpec, Table

DECAY = 0.8  # beta2 of step t is 1 - t^-0.8 (section 7.2)
EPSILON = 1e-30  # added to squared gradients (epsilon 1)


class AdafactorState(NamedTuple):
    steps: jax.Array
    moments: Any  # of a matrix (rows [layers, n_in], columns [layers, n_out]), else one array


def scale_by_adafactor(o: OptimConfig, table: Table) -> optax.GradientTransformation:
    """Returns updates g / sqrt(v), v the product of a matrix's row and column means of g^2.

    Stacked layers are matrices of their own; norms and biases keep a whole second moment.
    """
    rows: list[ParamSpec] = jax.tree.leaves(table, is_leaf=lambda x: isinstance(x, ParamSpec))

    def parts(row: ParamSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dimensions that a matrix sums over on its way in, and on its way out."""
        first = row.matrix_start
        dims = range(len(row.shape))
        return tuple(dims[first : first + row.n_in]), tuple(dims[first + row.n_in :])

    def init(params):
        def zeros(row: ParamSpec):
            if not row.decayed:
                return jnp.zeros(row.shape, jnp.float32)
            of = lambda summed: tuple(n for i, n in enumerate(row.shape) if i not in summed)
            n_in, n_out = parts(row)
            return jnp.zeros(of(n_out), jnp.float32), jnp.zeros(of(n_in), jnp.float32)

        tree: Any = jax.tree.structure(params)
        return AdafactorState(jnp.int32(0), tree.unflatten([zeros(row) for row in rows]))

    def update(updates, state, params=None):
        del params
        count = state.steps + 1
        keep = 1 - count.astype(jnp.float32) ** -DECAY

        def scaled(row: ParamSpec, g: jax.Array, moment):
            square = g * g + EPSILON
            mean = lambda old, new: keep * old + (1 - keep) * new
            if not row.decayed:
                moment = mean(moment, square)
                return g * jax.lax.rsqrt(moment), moment
            n_in, n_out = parts(row)
            by_row, by_column = (
                mean(moment[0], square.mean(n_out)),
                mean(moment[1], square.mean(n_in)),
            )
            wide = lambda x, dims: jnp.expand_dims(x, dims)
            share = by_row / by_row.mean(n_in, keepdims=True)
            v = wide(share, n_out) * wide(by_column, n_in)
            return g * jax.lax.rsqrt(v), (by_row, by_column)

        tree: Any = jax.tree.structure(updates)
        done = [
            scaled(*args)
            for args in zip(
                rows, jax.tree.leaves(updates), tree.flatten_up_to(state.moments), strict=True
            )
        ]
        moments = tree.unflatten([moment for _, moment in done])
        return tree.unflatten([u for u, _ in done]), AdafactorState(count, moments)

    return optax.GradientTransformation(init, update)
