"""Runs a pipeline program on the devices of the `pipe` axis: one scan over its ticks.

At a tick every stage does one piece of work or none, and then neighbours exchange what the tick
sends. Each kind of work is a loop of one turn or none: XLA changes what a loop carries in place,
where it copies all gradients and the stash into and out of a branch. A forward keeps each layer's
input; a backward computes one layer at a time again from it and never a whole stage (or reads the
residuals that the forward kept). The loss and its gradient belong to the last group's forward, so
that every backward is alike. Gradients add up in float32 on the stage that owns the layers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lm.collectives import axis_index, varying
from lm.layout import DATA, PIPE
from lm.loss import Loss
from lm.model.transformer import Model
from lm.objective import Batch, last_loss_sum
from lm.pipeline.program import (
    CODES,
    FIRST,
    INTO_FIRST,
    LAST,
    SEND_BACKWARD,
    SEND_FORWARD,
    WORK,
    Program,
)
from lm.pipeline.stage import Pieces, keeping, recomputing

Tree = Any


class Carry(NamedTuple):
    """What a stage holds between ticks. Buffers have a leading slot dimension."""

    inbox: jax.Array  # [slots + 1, B, T, D]: activations that arrived
    cotangents: jax.Array  # [slots + 1, B, T, D]: cotangents that arrived
    stash: Tree  # [slots, layers, ...]: what forwards leave for backwards
    loss_cotangents: jax.Array  # [slots, B, T, D]: of the last group's output
    deferred: Tree  # [slots, layers, ...]: what input parts leave for weight parts
    grads: Tree  # of this device's parameters, float32
    loss: Loss
    counts: jax.Array  # int32 [codes]: pieces of work done
    onward: jax.Array  # [B, T, D]: for the next group
    back: jax.Array  # [B, T, D]: for the group before


class Run:
    """One trace of a program over a device's parameters and rows. Made and used inside it."""

    def __init__(
        self, model: Model, program: Program, recompute: bool, scale, params, batch, key, z_loss=0.0
    ):
        self.model, self.program, self.params, self.scale = model, program, params, scale
        self.z_loss = z_loss
        self.stage = axis_index(PIPE)
        self.n_groups = program.stages * program.repeats
        self.key = key
        rows = jax.tree.leaves(batch)[0].shape[0] // program.microbatches
        # Micro-batch i takes rows i, i + m, ... of each device, as accumulation does. Cut out where
        # they are used: a copy in another order would grow with the number of micro-batches.
        self.parts = jax.tree.map(
            lambda x: x.reshape(rows, program.microbatches, *x.shape[1:]),
            varying(batch, DATA, PIPE),
        )
        chunks = lambda w: w.reshape(program.repeats, -1, *w.shape[model.layer_dims :])
        self.blocks = jax.tree.map(chunks, params["blocks"])
        self.outer = {name: p for name, p in params.items() if name != "blocks"}
        self.n_layers = jax.tree.leaves(self.blocks)[0].shape[1]  # of a chunk
        self.pieces: Pieces = (recomputing if recompute else keeping)(self._layer)

    # A tick's place in the schedule: t, then what this stage does in it.

    def _at(self, table: np.ndarray, t) -> jax.Array:
        return jnp.asarray(table)[t, self.stage]

    def _part(self, t) -> Batch:
        i = self._at(self.program.microbatch, t)
        return jax.tree.map(lambda x: x[:, i], self.parts)

    def _group(self, t) -> jax.Array:
        return self._at(self.program.chunk, t) * self.program.stages + self.stage

    def _layer(self, block_params, x, extra):
        context, key = extra
        return self.model.layer(block_params, x, context, key)

    def _extra(self, t, layer):
        """What a layer reads beside parameters and activations: positions, documents, its key."""
        part = self._part(t)
        key = None
        if self.key is not None:
            key = jax.random.fold_in(self._key(t), 1 + self._group(t) * self.n_layers + layer)
        return varying(self.model.context(part.inputs, part.segments, part.positions)), key

    def _key(self, t):
        return jax.random.fold_in(self.key, self._at(self.program.microbatch, t))

    def _block(self, t, layer):
        chunk = self._at(self.program.chunk, t) if self.program.repeats > 1 else 0
        return jax.tree.map(lambda w: w[chunk, layer], self.blocks)

    def _embed(self, outer, t):
        part = self._part(t)
        key = None if self.key is None else jax.random.fold_in(self._key(t), 0)
        return varying(self.model.embed(outer, part.inputs, part.positions, key))

    def _last_loss(self, outer, y, t):
        sums = last_loss_sum(self.model, outer, y, self._part(t), self.z_loss)
        loss = _loss_typed(jax.tree.map(lambda x: x * self.scale, sums))
        return loss.objective, loss

    def _no_loss(self) -> Loss:
        return _loss_typed(Loss(jnp.float32(0), jnp.float32(0) if self.z_loss else None))

    # The pieces of work: Carry -> Carry.

    def first_input(self, c: Carry, t) -> jax.Array:
        read = lambda: c.inbox[self._at(self.program.inbox_read, t)]
        with jax.named_scope(FIRST):
            return lax.cond(self._group(t) == 0, lambda: self._embed(self.outer, t), read)

    def forward(self, c: Carry, t) -> Carry:
        def layer(carry, i):
            x, stash = carry
            y, kept = self.pieces.forward(self._block(t, i), x, self._extra(t, i))
            return (y, _put(stash, (self._at(self.program.stash, t), i), kept)), None

        (y, stash), _ = lax.scan(
            layer, (self.first_input(c, t), c.stash), jnp.arange(self.n_layers)
        )

        def with_loss():
            of_loss = jax.value_and_grad(self._last_loss, (0, 1), has_aux=True)
            (_, loss), (d_outer, dy) = of_loss(self.outer, y, t)
            return loss, jax.tree.map(jnp.add, self._outer_grads(c), d_outer), dy

        without = lambda: (self._no_loss(), self._outer_grads(c), jnp.zeros_like(y))
        with jax.named_scope(LAST):
            loss, d_outer, dy = lax.cond(self._group(t) == self.n_groups - 1, with_loss, without)
        return c._replace(
            stash=stash,
            loss=jax.tree.map(jnp.add, c.loss, loss),
            grads=c.grads | d_outer,
            loss_cotangents=_put(c.loss_cotangents, (self._at(self.program.stash, t),), dy),
            onward=y,
        )

    def forward_only(self, c: Carry, t) -> Carry:
        """The forward of an evaluation: nothing is kept."""
        layer = lambda x, i: (self._layer(self._block(t, i), x, self._extra(t, i)), None)
        y, _ = lax.scan(layer, self.first_input(c, t), jnp.arange(self.n_layers))
        loss = lax.cond(
            self._group(t) == self.n_groups - 1,
            lambda: self._last_loss(self.outer, y, t)[1],
            self._no_loss,
        )
        return c._replace(loss=jax.tree.map(jnp.add, c.loss, loss), onward=y)

    def backward(self, c: Carry, t) -> Carry:
        def layer(carry, i):
            ct, blocks = carry
            p, extra = self._block(t, i), self._extra(t, i)
            dx, dp = self.pieces.backward(p, self._kept(c, t, i), ct, extra)
            return (dx, self._add(blocks, t, i, dp)), None

        carry = (self._cotangent(c, t), c.grads["blocks"])
        (dx, blocks), _ = lax.scan(layer, carry, jnp.arange(self.n_layers), reverse=True)
        return self._sent_back(c._replace(grads=c.grads | {"blocks": blocks}), t, dx)

    def input(self, c: Carry, t) -> Carry:
        def layer(carry, i):
            ct, deferred = carry
            p, extra = self._block(t, i), self._extra(t, i)
            dx, left = self.pieces.input(p, self._kept(c, t, i), ct, extra)
            return (dx, _put(deferred, (self._at(self.program.deferred, t), i), left)), None

        carry = (self._cotangent(c, t), c.deferred)
        (dx, deferred), _ = lax.scan(layer, carry, jnp.arange(self.n_layers), reverse=True)
        return self._sent_back(c._replace(deferred=deferred), t, dx)

    def weight(self, c: Carry, t) -> Carry:
        def layer(blocks, i):
            left = jax.tree.map(lambda d: d[self._at(self.program.deferred, t), i], c.deferred)
            p, extra = self._block(t, i), self._extra(t, i)
            dp = self.pieces.weight(p, self._kept(c, t, i), left, extra)
            return self._add(blocks, t, i, dp), None

        blocks, _ = lax.scan(layer, c.grads["blocks"], jnp.arange(self.n_layers))
        return c._replace(grads=c.grads | {"blocks": blocks})

    def _outer_grads(self, c: Carry) -> Tree:
        return {name: g for name, g in c.grads.items() if name != "blocks"}

    def _kept(self, c: Carry, t, layer) -> Tree:
        return jax.tree.map(lambda s: s[self._at(self.program.stash, t), layer], c.stash)

    def _cotangent(self, c: Carry, t) -> jax.Array:
        return lax.cond(
            self._group(t) == self.n_groups - 1,
            lambda: c.loss_cotangents[self._at(self.program.stash, t)],
            lambda: c.cotangents[self._at(self.program.ct_read, t)],
        )

    def _add(self, blocks: Tree, t, layer, dp: Tree) -> Tree:
        chunk = self._at(self.program.chunk, t) if self.program.repeats > 1 else 0
        return jax.tree.map(lambda g, d: g.at[chunk, layer].add(d), blocks, dp)

    def _sent_back(self, c: Carry, t, dx) -> Carry:
        """Sends the cotangent on, or from the first group into the embedding."""

        def into_embedding():
            _, vjp = jax.vjp(lambda outer: self._embed(outer, t), self.outer)
            return jax.tree.map(jnp.add, self._outer_grads(c), varying(vjp(dx)[0]))

        with jax.named_scope(INTO_FIRST):
            d_outer = lax.cond(self._group(t) == 0, into_embedding, lambda: self._outer_grads(c))
        return c._replace(grads=c.grads | d_outer, back=dx)

    # The scan.

    def start(self, with_gradients: bool) -> Carry:
        p = self.program
        x = jax.eval_shape(lambda: self._embed(self.outer, 0))
        zeros = lambda shape, dtype: varying(jnp.zeros(shape, dtype))
        activations = lambda n: zeros((n, *x.shape), x.dtype)
        slots = lambda n, tree: jax.tree.map(
            lambda s: zeros((n, self.n_layers, *s.shape), s.dtype), tree
        )
        nothing = zeros((0,), x.dtype)
        stash, deferred, grads = nothing, nothing, nothing
        if with_gradients:
            args = (self._block(0, 0), activations(1)[0], self._extra(0, 0))
            y, kept = jax.eval_shape(self.pieces.forward, *args)
            stash = slots(p.stash_size, kept)
            grads = jax.tree.map(jnp.zeros_like, self.outer | {"blocks": self.blocks})
            if p.deferred_size:
                given = (args[0], kept, args[1], args[2])
                deferred = slots(p.deferred_size, jax.eval_shape(self.pieces.input, *given)[1])
        return Carry(
            inbox=activations(p.inbox_size + 1),
            cotangents=activations(p.ct_size + 1),
            stash=stash,
            loss_cotangents=activations(p.stash_size if with_gradients else 0),
            deferred=deferred,
            grads=grads,
            loss=self._no_loss(),
            counts=zeros((len(CODES),), jnp.int32),
            onward=activations(1)[0],
            back=activations(1)[0],
        )

    def run(self, with_gradients: bool) -> Carry:
        p = self.program
        works = {
            "forward": self.forward if with_gradients else self.forward_only,
            "backward": self.backward,
            "input": self.input,
            "weight": self.weight,
        }
        onward = [(s, (s + 1) % p.stages) for s in range(p.stages)]
        back = [(b, a) for a, b in onward]

        def tick(c: Carry, t):
            for name in p.used:
                turns = (self._at(p.what, t) == CODES[name]).astype(jnp.int32)
                with jax.named_scope(WORK[name]):
                    c = lax.fori_loop(t, t + turns, self._counted(name, works[name]), c)
            with jax.named_scope(SEND_FORWARD):
                inbox = self._exchange(p.sends_forward, p.inbox_write, onward, c.inbox, c.onward, t)
            with jax.named_scope(SEND_BACKWARD):
                cts = self._exchange(p.sends_backward, p.ct_write, back, c.cotangents, c.back, t)
            return c._replace(inbox=inbox, cotangents=cts), None

        return lax.scan(tick, self.start(with_gradients), jnp.arange(p.ticks))[0]

    def _counted(self, name: str, work: Callable) -> Callable:
        def counted(t, c: Carry):
            done = work(c._replace(counts=c.counts.at[CODES[name]].add(1)), t)
            return varying(done._replace(loss=None))._replace(loss=done.loss)

        return counted

    def _exchange(self, sends, writes, ring, box, message, t):
        """Returns the box with what a neighbour sent, at ticks where anybody sends."""

        def exchanged():
            arrived = lax.ppermute(message, PIPE, ring)
            return box.at[self._at(writes, t)].set(arrived)

        return lax.cond(jnp.asarray(sends)[t], exchanged, lambda: box)


def _loss_typed(loss: Loss) -> Loss:
    """Differs between rows and stages, never over `model`: or gradients would count it twice."""
    return varying(jax.tree.map(lambda x: x.astype(jnp.float32), loss), DATA, PIPE)


def _put(buffer: Tree, place: tuple, values: Tree) -> Tree:
    return jax.tree.map(lambda b, v: b.at[place].set(v), buffer, values)


def loss_and_gradients(
    model: Model, program: Program, recompute: bool, z_loss: float = 0.0
) -> Callable:
    """Returns f(params, batch, scale, key) -> (Loss, gradients, counts) of one device's part.

    Loss: the sums over this device's rows of scale * token loss, nats, on the last stage, 0 on the
    others; gradients of this device's parameters before any sum over devices; counts: pieces of
    work done, int32 [codes of `lm.pipeline.program.CODES`].
    """

    def compute(params, batch: Batch, scale, key=None):
        done = Run(model, program, recompute, scale, params, batch, key, z_loss).run(True)
        blocks = jax.tree.map(
            lambda g, w: g.reshape(w.shape), done.grads["blocks"], params["blocks"]
        )
        return done.loss, done.grads | {"blocks": blocks}, done.counts

    return compute


def loss_only(model: Model, program: Program) -> Callable:
    """Returns f(params, batch) -> this device's Loss, of forward work alone."""
    forwards = program.forward_only()
    return (
        lambda params, batch: Run(model, forwards, True, 1.0, params, batch, None).run(False).loss
    )
