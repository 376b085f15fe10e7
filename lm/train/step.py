"""One optimizer step: gradients of the token-weighted loss, clipping, update. Pure, jitted once.

The same function serves every mesh: shardings of state and batch say the layout, and the compiler
adds the collectives.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lm.collectives import reduced, total, varying
from lm.config import Config
from lm.layout import DATA, PIPE, Layout
from lm.model.transformer import Model
from lm.objective import Batch, loss_sum
from lm.optim import schedules
from lm.pipeline import spmd as pipeline
from lm.pipeline.program import Program, make_program
from lm.pipeline.schedules import make_schedule
from lm.train import reproducible
from lm.train.state import TrainState, param_specs, shardings


def make_evaluate(model: Model, c: Config, layout: Layout) -> Callable:
    """Returns f(params, batch) -> sum of token losses over the whole batch, nats."""

    def evaluate(params, batch: Batch) -> jax.Array:
        if layout.stages == 1:
            return total(loss_sum(model, varying(params), batch), DATA)
        p = c.pipeline
        name = "gpipe" if p.repeats == 1 else "interleaved"  # forward work alone in its ticks
        program = make_program(make_schedule(name, layout.stages, p.microbatches, p.repeats))
        return total(pipeline.loss_only(model, program)(varying(params), batch), DATA, PIPE)

    specs = param_specs(model.table, layout)
    return layout.on_devices(evaluate, (specs, layout.batch.spec), layout.replicated.spec)


class Gradients(NamedTuple):
    loss: jax.Array  # mean over the valid tokens of the step, nats
    grads: Any
    n_valid: jax.Array
    norm: jax.Array | None  # None: to be computed


def make_gradients(model: Model, c: Config, layout: Layout) -> Callable:
    """Returns f(params, batch, key) -> Gradients.

    Micro-batches, of accumulation or of a pipeline, add up their loss sums and gradients in
    float32. Each is divided by the valid tokens of the whole step, so a micro-batch or a shard with
    fewer of them weighs less, and a fully masked one adds zero.
    """
    specs = param_specs(model.table, layout)
    local = _pipelined(model, c, layout) if layout.stages > 1 else _accumulated(model, c)

    def gradients(params, batch: Batch, key) -> tuple:
        """Of one device's rows and layers; sums over devices come at the end."""
        n_valid = total(batch.weights.sum(dtype=jnp.float32), DATA)
        scale = 1 / jnp.maximum(n_valid, 1.0)
        if c.train.reproducible:
            args = (local, model.table, varying(params), batch, scale, key)
            loss, grads, norm = reproducible.gradients(*args)
            return loss, grads, n_valid, norm
        loss, grads = local(varying(params), batch, scale, key)
        reduce = lambda g, spec: reduced(g, spec, model.reduce)
        grads = jax.tree.map(reduce, grads, specs)
        return total(loss, DATA, PIPE), grads, n_valid, None

    none = layout.replicated.spec
    outs = (none, specs, none, none)
    run = layout.on_devices(gradients, (specs, layout.batch.spec, none), outs)
    return lambda params, batch, key=None: Gradients(*run(params, batch, key))


def pipeline_program(c: Config, layout: Layout) -> Program:
    """Returns who does what at which tick of a step."""
    p = c.pipeline
    return make_program(make_schedule(p.schedule, layout.stages, p.microbatches, p.repeats))


def _pipelined(model: Model, c: Config, layout: Layout) -> Callable:
    program = pipeline_program(c, layout)
    compute = pipeline.loss_and_gradients(model, program, c.pipeline.recompute)
    return lambda *args: compute(*args)[:2]


def _accumulated(model: Model, c: Config) -> Callable:
    """Returns f(params, batch, scale, key) -> (scaled loss sum, its gradients) of one device."""
    k = c.train.accumulate

    def micro(x: jax.Array) -> jax.Array:
        # Micro-batch i takes rows i, i + k, ... of each device.
        return x.reshape(x.shape[0] // k, k, *x.shape[1:]).swapaxes(0, 1)

    def compute(params, batch: Batch, scale, key):
        part_of = jax.value_and_grad(lambda p, b, key: loss_sum(model, p, b, key) * scale)
        if k == 1:
            return part_of(params, batch, key)

        def add(sums, inputs):
            i, part = inputs
            part_key = None if key is None else jax.random.fold_in(key, i)
            return jax.tree.map(jnp.add, sums, part_of(params, part, part_key)), None

        zero = (varying(jnp.float32(0), DATA), jax.tree.map(jnp.zeros_like, params))
        return jax.lax.scan(add, zero, (jnp.arange(k), jax.tree.map(micro, batch)))[0]

    return compute


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
    gradients = make_gradients(model, c, layout)
    learning_rate = schedules.learning_rate(c.optim, n_steps)

    def step(state: TrainState, batch: Batch):
        key = None
        if c.model.dropout > 0:
            key = jax.random.fold_in(named_key(c.seed, "dropout"), state.step)
        loss, grads, n_valid, norm = gradients(state.params, batch, key)
        norm = optax.tree.norm(grads) if norm is None else norm
        clip = clip_factor(norm, c.optim.clip_norm)
        grads = jax.tree.map(lambda g: g * clip, grads)
        lr = learning_rate(state.step + 1) * growth_factor(c, batch.inputs.shape[0])

        def update(grads, opt, params):
            updates, opt = tx.update(grads, opt, params)
            return jax.tree.map(lambda p, u: p - lr * u, params, updates), opt

        args = (grads, state.opt, state.params)
        if c.train.reproducible:
            # Always true, which the compiler cannot know: fused with the sums before it, which
            # differ between layouts, the update would round differently.
            params, opt = jax.lax.cond(n_valid >= 0, update, lambda g, o, p: (p, o), *args)
        else:
            params, opt = update(*args)
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
