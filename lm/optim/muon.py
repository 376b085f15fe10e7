"""Muon (Jordan et al. 2024) for hidden matrices, AdamW for embeddings, head, norms and biases."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lm.config import OptimConfig
from lm.model.spec import ParamSpec, Table, each

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of x, x x'x and x (x'x)^2: Jordan's quintic
EPSILON = 1e-8  # added to a matrix's norm


class MuonState(NamedTuple):
    steps: jax.Array
    momentum: Any


def scale_by_muon(o: OptimConfig, table: Table) -> optax.GradientTransformation:
    """Returns updates: orthogonalised momentum for matrices, Adam's direction for the rest.

    A matrix's update is U V' of its Nesterov momentum (muon_iterations Newton-Schulz steps), times
    sqrt(max(1, n_out / n_in)) and muon_learning_rate / learning_rate, so that one schedule scales
    both groups. Stacked layers are orthogonalised one by one.
    """
    label = lambda row: "matrix" if row.hidden_matrix else "rest"
    labels = each(table, lambda _, row: label(row))
    rest = optax.scale_by_adam(o.b1, o.b2, o.eps)
    return optax.partition({"matrix": _matrices(o, table), "rest": rest}, labels)


def _matrices(o: OptimConfig, table: Table) -> optax.GradientTransformation:
    beta = o.muon_momentum
    none = optax.MaskedNode()
    rows = each(table, lambda _, row: row if row.hidden_matrix else none)

    def init(params):
        return MuonState(jnp.int32(0), optax.tree.zeros_like(params))

    def update(grads, state, params=None):
        del params
        steps = state.steps + 1
        momentum = optax.tree.update_moment(grads, state.momentum, beta, 1)
        ahead = optax.tree.bias_correction(momentum, beta, steps + 1)
        now = optax.tree.bias_correction(grads, beta, steps)

        def moved(row: ParamSpec, m: jax.Array, g: jax.Array) -> jax.Array:
            sizes = row.shape[row.matrix_start :]
            n_in, n_out = math.prod(sizes[: row.n_in]), math.prod(sizes[row.n_in :])
            x = (beta * m + (1 - beta) * g).reshape(-1, n_in, n_out)
            factor = math.sqrt(max(1.0, n_out / n_in)) * o.muon_learning_rate / o.learning_rate
            return factor * orthogonalised(x, o.muon_iterations).reshape(m.shape)

        is_row = lambda x: isinstance(x, ParamSpec)
        updates = jax.tree.map(moved, rows, ahead, now, is_leaf=is_row)
        return updates, MuonState(steps, momentum)

    return optax.GradientTransformation(init, update)


def orthogonalised(x: jax.Array, iterations: int) -> jax.Array:
    """Returns about U V' of each matrix U S V' of [n, n_in, n_out], by Newton-Schulz iterations.

    The smaller of x'x and x x' is multiplied from its side, so nothing is transposed: a norm taken
    beside a transposition is summed in an order that differs from one device to several.
    """
    a, b, c = COEFFICIENTS
    x = x / (jnp.sqrt(jnp.square(x).sum((1, 2), keepdims=True)) + EPSILON)
    tall = x.shape[1] > x.shape[2]
    for _ in range(iterations):
        gram = jnp.einsum("nki,nkj->nij" if tall else "nik,njk->nij", x, x)
        mixed = b * gram + c * (gram @ gram)
        x = a * x + (x @ mixed if tall else mixed @ x)
    return x
