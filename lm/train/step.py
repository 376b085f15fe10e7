"""One optimizer step: gradients of the token-weighted loss, clipping, update. Pure, jitted once.

The same function serves every mesh: shardings of state and batch say the layout, and the compiler
adds the collectives.
"""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lm.config import Config
from lm.layout import Layout
from lm.loss import token_loss_sum
from lm.model.transformer import Model
from lm.optim import schedules
from lm.train.state import TrainState, shardings

Batch = Any  # lm.data Batch: inputs, targets, weights [B, T], segments and positions or None


def make_loss_sum(model: Model) -> Callable:
    """Returns f(params, batch, dropout key or None) -> sum of token losses, nats."""

    vocab = model.config.vocab_size
    assert vocab is not None

    def loss_sum(params, batch: Batch, key=None) -> jax.Array:
        hidden = model.hidden(params, batch.inputs, batch.segments, batch.positions, key)
        head = model.head(params).astype(hidden.dtype)
        return token_loss_sum(
            hidden.reshape(-1, hidden.shape[-1]),
            head,
            batch.targets.reshape(-1),
            batch.weights.reshape(-1).astype(jnp.float32),
            vocab,
        )

    return loss_sum


def make_gradients(model: Model, accumulate: int) -> Callable:
    """Returns f(params, batch, key) -> (mean loss over valid tokens, gradients, valid tokens).

    With accumulate = k the rows are split into k micro-batches whose loss sums and gradients add up
    in float32. Each is divided by the valid tokens of the whole step, so a micro-batch or a shard
    with fewer of them weighs less, and a fully masked one adds zero.
    """
    loss_sum = make_loss_sum(model)

    def gradients(params, batch: Batch, key=None):
        n_valid = batch.weights.sum(dtype=jnp.float32)
        mean = lambda p, b, k: loss_sum(p, b, k) / jnp.maximum(n_valid, 1.0)
        if accumulate == 1:
            loss, grads = jax.value_and_grad(mean)(params, batch, key)
            return loss, grads, n_valid

        def micro(x: jax.Array) -> jax.Array:
            # Micro-batch i takes rows i, i + k, ...: every device keeps the rows it has.
            return x.reshape(x.shape[0] // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1)

        def add(total, inputs):
            i, part = inputs
            part_key = None if key is None else jax.random.fold_in(key, i)
            return jax.tree.map(
                jnp.add, total, jax.value_and_grad(mean)(params, part, part_key)
            ), None

        zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        parts = (jnp.arange(accumulate), jax.tree.map(micro, batch))
        (loss, grads), _ = jax.lax.scan(add, zero, parts)
        return loss, grads, n_valid

    return gradients


def clip_factor(norm: jax.Array, limit: float | None) -> jax.Array:
    """Returns min(1, limit / norm), 1 for a zero norm: the clipped norm is at most the limit."""
    if limit is None:
        return jnp.float32(1)
    return jnp.where(norm > limit, limit / norm, 1.0)


def growth_factor(c: Config, rows: int) -> float:
    """Returns what the learning rate is multiplied by at `rows` sequences a step."""
    ratio = rows / c.train.batch_size
    return {"sqrt": ratio**0.5, "linear": ratio, "constant": 1.0}[c.train.batch_growth_lr]


def make_step(c: Config, model: Model, tx: optax.GradientTransformation, n_steps: int):
    """Returns f(state, batch) -> (state, {loss, grad_norm, clip, lr, n_valid}), not yet jitted."""
    gradients = make_gradients(model, c.train.accumulate)
    learning_rate = schedules.learning_rate(c.optim, n_steps)

    def step(state: TrainState, batch: Batch):
        key = None
        if c.model.dropout > 0:
            key = jax.random.fold_in(named_key(c.seed, "dropout"), state.step)
        loss, grads, n_valid = gradients(state.params, batch, key)
        norm = optax.tree.norm(grads)
        clip = clip_factor(norm, c.optim.clip_norm)
        grads = jax.tree.map(lambda g: g * clip, grads)
        lr = learning_rate(state.step + 1) * growth_factor(c, batch.inputs.shape[0])
        updates, opt = tx.update(grads, state.opt, state.params)
        params = jax.tree.map(lambda p, u: p - lr * u, state.params, updates)
        metrics = {"loss": loss, "grad_norm": norm, "clip": clip, "lr": lr, "n_valid": n_valid}
        return TrainState(state.step + 1, params, opt), metrics

    return step


def jit_step(c: Config, model: Model, tx, n_steps: int, layout: Layout):
    """Returns the step compiled for a layout: the state keeps its sharding and is donated."""
    where = shardings(model.table, tx, layout)
    return jax.jit(
        make_step(c, model, tx, n_steps),
        in_shardings=(where, layout.batch),
        out_shardings=(where, layout.replicated),
        donate_argnums=0,
    )


def named_key(seed: int, name: str) -> jax.Array:
    """Returns the random key of a named use: adding a use changes no other."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
