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

from lm.collectives import axis_index, axis_size, reduced, total, varying
from lm.config import Config
from lm.layout import DATA, MODEL, PIPE, Layout
from lm.loss import Loss
from lm.model import probe
from lm.model.transformer import Model
from lm.objective import Batch, loss_sum
from lm.optim import average as ema
from lm.optim import schedules
from lm.optim.build import Optimizer
from lm.optim.guard import KEPT
from lm.pipeline import spmd as pipeline
from lm.pipeline.program import Program, make_program
from lm.pipeline.schedules import make_schedule
from lm.precision import wide
from lm.train import norms, reproducible
from lm.train.state import TrainState, param_specs, shardings


def make_evaluate(model: Model, c: Config, layout: Layout) -> Callable:
    """Returns f(params, batch) -> sum of token losses over the whole batch, nats."""

    def evaluate(params, batch: Batch) -> jax.Array:
        of_rows = lambda params, rows: loss_sum(model, params, rows).objective
        if c.train.reproducible:
            n_parts = reproducible.parts(c.train)
            return reproducible.loss_sum(of_rows, n_parts, model.table, varying(params), batch)
        if layout.stages == 1:
            return total(of_rows(varying(params), batch), DATA)
        p = c.pipeline
        name = "gpipe" if p.repeats == 1 else "interleaved"  # forward work alone in its ticks
        program = make_program(make_schedule(name, layout.stages, p.microbatches, p.repeats))
        loss = pipeline.loss_only(model, program)(varying(params), batch)
        return total(loss.objective, DATA, PIPE)

    specs = param_specs(model.table, layout)
    return layout.on_devices(evaluate, (specs, layout.batch.spec), layout.replicated.spec)


class Gradients(NamedTuple):
    loss: jax.Array  # mean over the valid tokens of the step, nats, without the z-loss
    grads: Any  # of the loss with the z-loss
    n_valid: jax.Array
    norm: jax.Array | None  # None: to be computed
    z_loss: jax.Array | None  # None: it is off
    squares: jax.Array | None  # [layers] summed over a layer's output; None: not asked for


def make_gradients(model: Model, c: Config, layout: Layout) -> Callable:
    """Returns f(params, batch, key, loss_scale) -> Gradients.

    Micro-batches, of accumulation or of a pipeline, add up their loss sums and gradients in
    float32. Each is divided by the valid tokens of the whole step, so a micro-batch or a shard with
    fewer of them weighs less, and a fully masked one adds zero. With a loss scale, a power of two,
    the gradients are scaled until they are summed.
    """
    table = model.table
    if c.log.layer_norms:
        row = probe.row(c.model.n_layers, c.pipeline.repeats)
        table = table | {"blocks": table["blocks"] | {probe.PROBE: row}}
    specs = param_specs(table, layout)
    local = _pipelined(model, c, layout) if layout.stages > 1 else _accumulated(model, c)

    def gradients(params, batch: Batch, key, loss_scale) -> tuple:
        """Of one device's rows and layers; sums over devices come at the end."""
        n_valid = total(batch.weights.sum(dtype=jnp.float32), DATA)
        scale = 1 / jnp.maximum(n_valid, 1.0)
        if loss_scale is not None:
            scale = scale * loss_scale
        if c.train.reproducible:
            n_parts = reproducible.parts(c.train)
            args = (local, n_parts, model.table, varying(params), batch, scale, key)
            loss, grads, norm = reproducible.gradients(*args)
        else:
            loss, grads = local(varying(params), batch, scale, own_key(key))
            norm = None
            grads = reduced(grads, specs, model.reduce, as_one=layout.over_sockets)
            loss = jax.tree.map(lambda x: total(x, DATA, PIPE), loss)
        squares = grads["blocks"].pop(probe.PROBE, None)
        if loss_scale is not None:
            loss, grads = jax.tree.map(lambda x: x / loss_scale, (loss, grads))
            norm = norm if norm is None else norm / loss_scale
        nats = loss.objective if loss.z is None else loss.objective - loss.z
        return nats, grads, n_valid, norm, loss.z, squares

    none = layout.replicated.spec
    row_specs = param_specs(model.table, layout)
    squares_spec = specs["blocks"].get(probe.PROBE, none)
    run = layout.on_devices(
        gradients,
        (specs, layout.batch.spec, none, none),
        (none, row_specs, none, none, none, squares_spec),
    )

    def compute(params, batch: Batch, key=None, loss_scale=None) -> Gradients:
        if c.log.layer_norms:
            zeros = jnp.zeros(table["blocks"][probe.PROBE].shape, jnp.float32)
            params = params | {"blocks": params["blocks"] | {probe.PROBE: zeros}}
        return Gradients(*run(params, batch, key, loss_scale))

    return compute


def own_key(key: jax.Array | None) -> jax.Array | None:
    """Returns the dropout key of this device's rows and its part of the time; of one device, key.

    A pipeline's stages hold other layers, whose keys differ by themselves.
    """
    for axis in (DATA, MODEL):
        if key is not None and axis_size(axis) > 1:
            key = jax.random.fold_in(key, axis_index(axis))
    return key


def pipeline_program(c: Config, layout: Layout) -> Program:
    """Returns who does what at which tick of a step."""
    p = c.pipeline
    return make_program(make_schedule(p.schedule, layout.stages, p.microbatches, p.repeats))


def _pipelined(model: Model, c: Config, layout: Layout) -> Callable:
    program = pipeline_program(c, layout)
    compute = pipeline.loss_and_gradients(model, program, c.pipeline.recompute, c.optim.z_loss)
    return lambda *args: compute(*args)[:2]


def _accumulated(model: Model, c: Config) -> Callable:
    """Returns f(params, batch, scale, key) -> (scaled Loss, its gradients) of one device."""
    k = c.train.accumulate

    def micro(x: jax.Array) -> jax.Array:
        # Micro-batch i takes rows i, i + k, ... of each device.
        return x.reshape(x.shape[0] // k, k, *x.shape[1:]).swapaxes(0, 1)

    def compute(params, batch: Batch, scale, key):
        def scaled(p, b, key):
            sums = loss_sum(model, p, b, key, c.optim.z_loss)
            loss = jax.tree.map(lambda x: x * scale, sums)
            return loss.objective, loss

        def part_of(p, b, key):
            (_, loss), grads = jax.value_and_grad(scaled, has_aux=True)(p, b, key)
            return loss, grads

        if k == 1:
            return part_of(params, batch, key)

        def add(sums, inputs):
            i, part = inputs
            part_key = None if key is None else jax.random.fold_in(key, i)
            return jax.tree.map(jnp.add, sums, part_of(params, part, part_key)), None

        none = varying(jnp.zeros((), wide(model.compute)), DATA)
        zero = (Loss(none, none if c.optim.z_loss else None), jax.tree.map(jnp.zeros_like, params))
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


def learning_rate(c: Config, n_steps: int) -> Callable[[jax.Array, int], jax.Array]:
    """Returns f(step, rows) giving the float32 learning rate of step `step` of `rows` sequences."""
    rate = schedules.learning_rate(c.optim, n_steps)
    return lambda step, rows: rate(step) * growth_factor(c, rows)


def make_step(c: Config, model: Model, tx: Optimizer, n_steps: int, layout: Layout):
    """Returns f(state, batch) -> (state, metrics), not yet jitted.

    metrics: loss, grad_norm, clip, lr, n_valid, and where they are on z_loss, loss_scale, skipped
    (lm/optim/guard.py says why: 0 for not), grad_norm/... and activation_rms/....
    """
    gradients = make_gradients(model, c, layout)
    rate = learning_rate(c, n_steps)

    def step(state: TrainState, batch: Batch):
        key = None
        if c.model.dropout > 0:
            key = jax.random.fold_in(named_key(c.seed, "dropout"), state.step)
        loss_scale = state.guard.scale if tx.guard and tx.guard.scale else None
        found = gradients(state.params, batch, key, loss_scale)
        grads = found.grads
        norm = optax.tree.norm(grads) if found.norm is None else found.norm
        clip = clip_factor(norm, c.optim.clip_norm)
        lr = rate(state.step + 1, batch.inputs.shape[0])
        metrics = {
            "loss": found.loss,
            "grad_norm": norm,
            "clip": clip,
            "lr": lr,
            "n_valid": found.n_valid,
        }
        if found.z_loss is not None:
            metrics["z_loss"] = found.z_loss
        if found.squares is not None:
            n_values = batch.inputs.size * c.model.d_model
            metrics |= norms.by_layer(model, grads, found.squares, n_values)

        def update(grads, opt, params, average):
            grads = jax.tree.map(lambda g: g * clip, grads)
            updates, opt = tx.update(grads, opt, params)
            params = jax.tree.map(lambda p, u: p - lr * u, params, updates)
            if tx.ema_decay:
                average = ema.updated(average, params, tx.ema_decay, state.step + 1)
            return opt, params, average

        args = (grads, state.opt, state.params, state.average)
        guard, counts = state.guard, None
        if c.train.reproducible:
            # Always true, which the compiler cannot know: fused with the sums before it, which
            # differ between layouts, the update would round differently.
            counts = found.n_valid >= 0
            if not tx.elementwise:
                update = reproducible.everywhere(update, layout)
        if tx.guard:
            verdict, guard = tx.guard.judge(state.guard, found.loss, norm)
            counts = verdict == KEPT
            metrics["skipped"] = verdict
            if loss_scale is not None:
                metrics["loss_scale"] = loss_scale
        if counts is None:
            opt, params, average = update(*args)
        else:
            opt, params, average = jax.lax.cond(counts, update, lambda _, *old: old, *args)
        return TrainState(state.step + 1, params, opt, average, guard), metrics

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
