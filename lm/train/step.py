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

from lm.collectives import gather_time, reduced, total, varying
from lm.config import Config
from lm.layout import DATA, Layout
from lm.loss import token_loss_sum
from lm.model.transformer import Model
from lm.optim import schedules
from lm.train.state import TrainState, param_specs, shardings

Batch = Any  # lm.data Batch: inputs, targets, weights [B, T], segments and positions or None


def make_loss_sum(model: Model) -> Callable:
    """Returns f(params, batch, dropout key or None) -> sum of this device's token losses, nats."""

    vocab = model.config.vocab_size
    assert vocab is not None

    def loss_sum(params, batch: Batch, key=None) -> jax.Array:
        hidden = model.hidden(params, batch.inputs, batch.segments, batch.positions, key)
        hidden = gather_time(hidden)
        return token_loss_sum(
            hidden.reshape(-1, hidden.shape[-1]),
            model.head(params).astype(hidden.dtype),
            batch.targets.reshape(-1),
            batch.weights.reshape(-1).astype(jnp.float32),
            vocab,
        )

    return loss_sum


def make_evaluate(model: Model, layout: Layout) -> Callable:
    """Returns f(params, batch) -> sum of token losses over the whole batch, nats."""
    loss_sum = make_loss_sum(model)

    def evaluate(params, batch: Batch) -> jax.Array:
        return total(loss_sum(varying(params), batch), DATA)

    specs = param_specs(model.table, layout)
    return layout.on_devices(evaluate, (specs, layout.batch.spec), layout.replicated.spec)


def make_gradients(model: Model, accumulate: int, layout: Layout) -> Callable:
    """Returns f(params, batch, key) -> (mean loss over valid tokens, gradients, valid tokens).

    With accumulate = k the rows are split into k micro-batches whose loss sums and gradients add up
    in float32. Each is divided by the valid tokens of the whole step, so a micro-batch or a shard
    with fewer of them weighs less, and a fully masked one adds zero.
    """
    loss_sum = make_loss_sum(model)
    specs = param_specs(model.table, layout)

    def gradients(params, batch: Batch, key=None):
        """Of one device's rows; sums over devices come at the end."""
        n_valid = total(batch.weights.sum(dtype=jnp.float32), DATA)
        mean = lambda p, b, k: loss_sum(p, b, k) / jnp.maximum(n_valid, 1.0)
        params = varying(params)
        if accumulate == 1:
            loss, grads = jax.value_and_grad(mean)(params, batch, key)
        else:
            loss, grads = accumulated(mean, params, batch, key)
        reduce = lambda g, spec: reduced(g, spec, model.reduce)
        return total(loss, DATA), jax.tree.map(reduce, grads, specs), n_valid

    def accumulated(mean: Callable, params, batch: Batch, key):
        def micro(x: jax.Array) -> jax.Array:
            # Micro-batch i takes rows i, i + k, ... of each device.
            return x.reshape(x.shape[0] // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1)

        def add(sums, inputs):
            i, part = inputs
            part_key = None if key is None else jax.random.fold_in(key, i)
            return jax.tree.map(
                jnp.add, sums, jax.value_and_grad(mean)(params, part, part_key)
            ), None

        zero = (varying(jnp.float32(0), DATA), jax.tree.map(jnp.zeros_like, params))
        parts = (jnp.arange(accumulate), jax.tree.map(micro, batch))
        return jax.lax.scan(add, zero, parts)[0]

    none = layout.replicated.spec
    run = layout.on_devices(gradients, (specs, layout.batch.spec, none), (none, specs, none))
    return lambda params, batch, key=None: run(params, batch, key)


def clip_factor(norm: jax.Array, limit: float | None) -> jax.Array:
    """Returns min(1, limit / norm), 1 for a zero norm: the clipped norm is at most the limit."""
    if limit is None:
        return jnp.float32(1)
    return jnp.where(norm > limit, limit / norm, 1.0)


def growth_factor(c: Config, rows: int) -> float:
    """Returns what the learning rate is multiplied by at `rows` sequences a step."""
    ratio = rows / c.train.batch_size
    return {"sqrt": ratio**0.5, "linear": ratio, "constant": 1.0}[c.train.batch_growth_lr]


def make_step(
    c: Config, model: Model, tx: optax.GradientTransformation, n_steps: int, layout: Layout
):
    """Returns f(state, batch) -> (state, {loss, grad_norm, clip, lr, n_valid}), not yet jitted."""
    gradients = make_gradients(model, c.train.accumulate, layout)
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
        make_step(c, model, tx, n_steps, layout),
        in_shardings=(where, layout.batch),
        out_shardings=(where, layout.replicated),
        donate_argnums=0,
    )


def named_key(seed: int, name: str) -> jax.Array:
    """Returns the random key of a named use: adding a use changes no other."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
