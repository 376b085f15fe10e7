"""The cross-entropy of the next token: one definition for training, evaluation and every layout.

A loss is the sum of token losses over all valid tokens of the whole step, divided by their
number. Micro-batches and shards add their sums; nothing is averaged twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lm.collectives import axis_index, axis_size, largest, total, varying
from lm.layout import MODEL

LOGITS_BYTES = 256 * 2**20  # more float32 logits than this are formed in parts


def token_loss_sum(
    hidden_ND: jax.Array, head_VD: jax.Array, targets_N: jax.Array, weights_N: jax.Array, vocab: int
) -> jax.Array:
    """Returns the sum over tokens of weight * (logsumexp(logits) - logit of the target), nats.

    hidden and head in the compute dtype; logits, softmax and sums in float32. Rows of the head from
    `vocab` on are padding and never take part. The logits are formed once, their gradient in the
    same pass, and never more than LOGITS_BYTES of them are held. With the vocabulary split over
    `model`, head holds this device's rows and the sums over the vocabulary cross devices (Shoeybi
    et al. 2019, section 3).
    """
    return _loss(hidden_ND, head_VD, targets_N, weights_N, vocab)


def _own_ids(head_VD: jax.Array) -> jax.Array | int:
    """Returns the id of this device's first row of the vocabulary."""
    return axis_index(MODEL) * head_VD.shape[0]


def _logits(hidden_ND, head_VD, vocab):
    logits = jax.lax.dot_general(
        hidden_ND, head_VD, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    n_rows = head_VD.shape[0]
    if n_rows * axis_size(MODEL) != vocab:
        logits = jnp.where(_own_ids(head_VD) + jnp.arange(n_rows) < vocab, logits, -jnp.inf)
    return logits


def _target_logits(logits_NV, targets_N, first):
    """Returns [N, 1]: each target's logit, from the device that has it."""
    if axis_size(MODEL) == 1:
        return jnp.take_along_axis(logits_NV, targets_N[:, None], 1)
    own_N1 = (targets_N - first)[:, None]
    here_N1 = (own_N1 >= 0) & (own_N1 < logits_NV.shape[1])
    found_N1 = jnp.take_along_axis(logits_NV, jnp.where(here_N1, own_N1, 0), 1)
    return total(jnp.where(here_N1, found_N1, 0), MODEL)


class _Parts(NamedTuple):
    """Of some rows: sum of weighted losses, and what the gradient of the logits is made of."""

    loss: jax.Array
    e: jax.Array  # [N, V] exp(logits - largest)
    z: jax.Array  # [N, 1] sum of e over the whole vocabulary


def _parts(hidden_ND, head_VD, targets_N, weights_N, vocab) -> _Parts:
    logits = _logits(hidden_ND, head_VD, vocab)
    # A device whose rows are all padding has no maximum of its own.
    top = largest(logits.max(-1, keepdims=True), MODEL)
    e = jnp.exp(logits - top)
    z = total(e.sum(-1, keepdims=True), MODEL)
    target = _target_logits(logits, targets_N, _own_ids(head_VD))
    losses = (top + jnp.log(z) - target)[:, 0]
    return _Parts((losses * weights_N).sum(), e, z)


def _gradients(hidden_ND, head_VD, targets_N, weights_N, e, z):
    """Returns (d hidden in the compute dtype, d head in float32) of a sum of weighted losses."""
    ids = _own_ids(head_VD) + jax.lax.broadcasted_iota(jnp.int32, e.shape, 1)
    hit = ids == targets_N[:, None]
    d = ((e / z - hit) * weights_N[:, None]).astype(hidden_ND.dtype)
    d_head = jax.lax.dot_general(
        d, hidden_ND, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    return d @ head_VD, d_head


def _n_chunks(n_rows: int, n_vocab: int) -> int:
    """Returns into how many parts of equal rows to cut, so that no part's logits are too large."""
    wanted = -(-4 * n_rows * n_vocab // LOGITS_BYTES)
    return next(k for k in range(wanted, n_rows + 1) if n_rows % k == 0)


def _chunked(n: int, *arrays: jax.Array):
    return tuple(x.reshape(n, -1, *x.shape[1:]) for x in arrays)


def _loss_sum(hidden, head, targets, weights, vocab):
    n = _n_chunks(hidden.shape[0], head.shape[0])
    if n == 1:
        return _parts(hidden, head, targets, weights, vocab).loss
    of_chunk = lambda rows: _parts(rows[0], head, rows[1], rows[2], vocab).loss
    return jax.lax.map(of_chunk, _chunked(n, hidden, targets, weights)).sum()


def _loss_fwd(hidden, head, targets, weights, vocab):
    n = _n_chunks(hidden.shape[0], head.shape[0])
    if n == 1:
        parts = _parts(hidden, head, targets, weights, vocab)
        return parts.loss, (hidden, head, targets, weights, parts.e, parts.z)

    # The gradient is linear in the loss's own, so each chunk's is formed while its logits are here.
    def add(d_head, rows):
        hidden, targets, weights = rows
        parts = _parts(hidden, head, targets, weights, vocab)
        d_hidden, d = _gradients(hidden, head, targets, weights, parts.e, parts.z)
        return d_head + d, (parts.loss, d_hidden)

    zero = varying(jnp.zeros(head.shape, jnp.float32))
    d_head, (losses, d_hidden) = jax.lax.scan(
        add, zero, _chunked(n, varying(hidden), targets, weights)
    )
    # Cast now: the backward pass of all layers comes between here and the head's update.
    saved = (d_hidden.reshape(hidden.shape), d_head.astype(head.dtype))
    return losses.sum(), jax.lax.optimization_barrier(saved)


def _loss_bwd(vocab, saved, g):
    if len(saved) == 2:
        d_hidden, d_head = saved
        return g.astype(d_hidden.dtype) * d_hidden, g.astype(d_head.dtype) * d_head, None, None
    hidden, head, targets, weights, e, z = saved
    d_hidden, d_head = _gradients(hidden, head, targets, g * weights, e, z)
    return d_hidden, d_head.astype(head.dtype), None, None


_loss = jax.custom_vjp(_loss_sum, nondiff_argnums=(4,))
_loss.defvjp(_loss_fwd, _loss_bwd)
