"""The cross-entropy of the next token: one definition for training, evaluation and every layout.

A loss is the sum of token losses over all valid tokens of the whole step, divided by their
number. Micro-batches and shards add their sums; nothing is averaged twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lm.collectives import axis_index, axis_size, largest, total, varying
from lm.layout import MODEL
from lm.precision import wide

LOGITS_BYTES = 256 * 2**20  # more float32 logits than this are formed in parts
PARTS = 4  # of LOGITS_BYTES: a part's exponentials, and its gradient in two dtypes, stand beside it


class Loss(NamedTuple):
    """Sums over tokens, nats: what is minimised, and the z-loss that is in it (None: it is off)."""

    objective: jax.Array
    z: jax.Array | None


class Rule(NamedTuple):
    """How logits become a loss."""

    vocab: int
    softcap: float | None = None  # logits are softcap tanh(logits / softcap) (Gemma 2, 2024)
    z_loss: float = 0.0  # weight of logsumexp(logits)^2 (Chowdhery et al. 2022, section 5)

    @property
    def plain(self) -> bool:
        return self.softcap is None and not self.z_loss


def token_loss_sum(
    hidden_ND: jax.Array, head_VD: jax.Array, targets_N: jax.Array, weights_N: jax.Array, vocab: int
) -> jax.Array:
    """Returns the sum over tokens of weight * (logsumexp(logits) - logit of the target), nats."""
    return token_losses(hidden_ND, head_VD, targets_N, weights_N, Rule(vocab)).objective


def token_losses(
    hidden_ND: jax.Array, head_VD: jax.Array, targets_N: jax.Array, weights_N: jax.Array, rule: Rule
) -> Loss:
    """Returns the sums over tokens of weight * (logsumexp(logits) - logit of the target), and of
    weight * z_loss * logsumexp(logits)^2, which is part of the first.

    hidden and head in the compute dtype; logits, softmax and sums in float32. Rows of the head from
    `vocab` on are padding and never take part. The logits are formed once, their gradient in the
    same pass, and never more than LOGITS_BYTES of them are held, a quarter of it where there are
    more. With the vocabulary split over `model`, head holds this device's rows and the sums over
    the vocabulary cross devices (Shoeybi et al. 2019, section 3). Of the two only the objective has
    a gradient.
    """
    return _loss(hidden_ND, head_VD, targets_N, weights_N, rule)


def _own_ids(head_VD: jax.Array) -> jax.Array | int:
    """Returns the id of this device's first row of the vocabulary."""
    return axis_index(MODEL) * head_VD.shape[0]


def _logits(hidden_ND, head_VD, rule):
    """Returns (logits [N, V], their derivative by the products; None: it is 1)."""
    logits = jax.lax.dot_general(
        hidden_ND,
        head_VD,
        (((1,), (1,)), ((), ())),
        preferred_element_type=wide(hidden_ND.dtype),
    )
    slope = None
    if rule.softcap is not None:
        share = jnp.tanh(logits / rule.softcap)
        logits, slope = rule.softcap * share, 1 - share * share
    n_rows = head_VD.shape[0]
    if n_rows * axis_size(MODEL) != rule.vocab:
        logits = jnp.where(_own_ids(head_VD) + jnp.arange(n_rows) < rule.vocab, logits, -jnp.inf)
    return logits, slope


def _target_logits(logits_NV, targets_N, first):
    """Returns [N, 1]: each target's logit, from the device that has it."""
    if axis_size(MODEL) == 1:
        return jnp.take_along_axis(logits_NV, targets_N[:, None], 1)
    own_N1 = (targets_N - first)[:, None]
    here_N1 = (own_N1 >= 0) & (own_N1 < logits_NV.shape[1])
    found_N1 = jnp.take_along_axis(logits_NV, jnp.where(here_N1, own_N1, 0), 1)
    return total(jnp.where(here_N1, found_N1, 0), MODEL)


class _Parts(NamedTuple):
    """Of some rows: sums of weighted losses, and what the gradient of the logits is made of."""

    loss: Loss
    e: jax.Array  # [N, V] exp(logits - largest)
    z: jax.Array  # [N, 1] sum of e over the whole vocabulary
    lse: jax.Array  # [N, 1] logsumexp of the logits
    slope: jax.Array | None  # [N, V]


def _parts(hidden_ND, head_VD, targets_N, weights_N, rule: Rule) -> _Parts:
    logits, slope = _logits(hidden_ND, head_VD, rule)
    # A device whose rows are all padding has no maximum of its own.
    top = largest(logits.max(-1, keepdims=True), MODEL)
    e = jnp.exp(logits - top)
    z = total(e.sum(-1, keepdims=True), MODEL)
    target = _target_logits(logits, targets_N, _own_ids(head_VD))
    lse = top + jnp.log(z)
    objective = ((lse - target)[:, 0] * weights_N).sum()
    z_loss = None
    if rule.z_loss:
        z_loss = rule.z_loss * (lse[:, 0] ** 2 * weights_N).sum()
        objective = objective + z_loss
    return _Parts(Loss(objective, z_loss), e, z, lse, slope)


def _gradients(hidden_ND, head_VD, targets_N, weights_N, e, z, rule=None, lse=None, slope=None):
    """Returns (d hidden, d head) of a sum of weighted losses, in float32 (without a rule, d hidden
    in the compute dtype)."""
    ids = _own_ids(head_VD) + jax.lax.broadcasted_iota(jnp.int32, e.shape, 1)
    hit = ids == targets_N[:, None]
    share = e / z
    if rule is not None and rule.z_loss:
        share = share * (1 + 2 * rule.z_loss * lse)
    d = (share - hit) * weights_N[:, None]
    d = (d if slope is None else d * slope).astype(hidden_ND.dtype)
    d_head = jax.lax.dot_general(
        d, hidden_ND, (((0,), (0,)), ((), ())), preferred_element_type=wide(d.dtype)
    )
    if rule is None:
        return d @ head_VD, d_head
    # Named wide, or XLA:CPU makes a float32 copy of the whole head for a product in bfloat16.
    d_hidden = jax.lax.dot_general(
        d, head_VD, (((1,), (0,)), ((), ())), preferred_element_type=wide(d.dtype)
    )
    return d_hidden, d_head


def logits_bytes(n_rows: int, n_vocab: int) -> int:
    """Returns the bytes of float32 logits that are held at once."""
    everything = 4 * n_rows * n_vocab
    return everything if everything <= LOGITS_BYTES else LOGITS_BYTES // PARTS


def _n_chunks(n_rows: int, n_vocab: int) -> int:
    """Returns into how many parts of equal rows to cut, so that no part's logits are too large."""
    if logits_bytes(n_rows, n_vocab) == 4 * n_rows * n_vocab:
        return 1
    wanted = min(-(-4 * PARTS * n_rows * n_vocab // LOGITS_BYTES), n_rows)
    return next(k for k in range(wanted, n_rows + 1) if n_rows % k == 0)


def _chunked(n: int, *arrays: jax.Array):
    return tuple(x.reshape(n, -1, *x.shape[1:]) for x in arrays)


def _loss_sum(hidden, head, targets, weights, rule) -> Loss:
    n = _n_chunks(hidden.shape[0], head.shape[0])
    if n == 1:
        return _parts(hidden, head, targets, weights, rule).loss
    of_chunk = lambda rows: _parts(rows[0], head, rows[1], rows[2], rule).loss
    sums = jax.lax.map(of_chunk, _chunked(n, hidden, targets, weights))
    return jax.tree.map(lambda x: x.sum(), sums)


def loss_and_gradients(hidden, head, targets, weights, rule: Rule, dtype):
    """Returns (Loss, (d hidden, d head) rounded to dtype) of token_losses, few logits at a time.

    The gradient is linear in the loss's own, so each chunk's is formed while its logits are here.
    """

    def add(d_head, rows):
        hidden, targets, weights = rows
        p = _parts(hidden, head, targets, weights, rule)
        d_hidden, d = _gradients(hidden, head, targets, weights, p.e, p.z, rule, p.lse, p.slope)
        return d_head + d, (p.loss, d_hidden.astype(dtype))

    n = _n_chunks(hidden.shape[0], head.shape[0])
    zero = varying(jnp.zeros(head.shape, wide(head.dtype)))
    d_head, (losses, d_hidden) = jax.lax.scan(
        add, zero, _chunked(n, varying(hidden), targets, weights)
    )
    gradients = (d_hidden.reshape(hidden.shape), d_head.astype(dtype))
    return jax.tree.map(lambda x: x.sum(), losses), gradients


def _loss_fwd(hidden, head, targets, weights, rule):
    if _n_chunks(hidden.shape[0], head.shape[0]) == 1 and rule.plain:
        parts = _parts(hidden, head, targets, weights, rule)
        return parts.loss, (hidden, head, targets, weights, parts.e, parts.z)
    # Rounded now: the backward pass of all layers comes between here and the head's update.
    loss, saved = loss_and_gradients(hidden, head, targets, weights, rule, head.dtype)
    return loss, jax.lax.optimization_barrier(saved)


def _loss_bwd(rule, saved, g: Loss):
    if len(saved) == 2:
        d_hidden, d_head = saved
        by = lambda d: (g.objective * d).astype(d.dtype)
        return by(d_hidden), by(d_head), None, None
    hidden, head, targets, weights, e, z = saved
    d_hidden, d_head = _gradients(hidden, head, targets, g.objective * weights, e, z)
    return d_hidden, d_head.astype(head.dtype), None, None


_loss = jax.custom_vjp(_loss_sum, nondiff_argnums=(4,))
_loss.defvjp(_loss_fwd, _loss_bwd)
