"""The cross-entropy of the next token: one definition for training, evaluation and every layout.

A loss is the sum of token losses over all valid tokens of the whole step, divided by their
number. Micro-batches and shards add their sums; nothing is averaged twice.
"""

import jax
import jax.numpy as jnp

from lm.collectives import axis_index, axis_size, largest, total
from lm.layout import MODEL


def token_loss_sum(
    hidden_ND: jax.Array, head_VD: jax.Array, targets_N: jax.Array, weights_N: jax.Array, vocab: int
) -> jax.Array:
    """Returns the sum over tokens of weight * (logsumexp(logits) - logit of the target), nats.

    hidden and head in the compute dtype; logits, softmax and sums in float32. Rows of the head from
    `vocab` on are padding and never take part. The gradient of the logits is formed once, in one
    pass over them. With the vocabulary split over `model`, head holds this device's rows and the
    sums over the vocabulary cross devices (Shoeybi et al. 2019, section 3).
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


def _loss_fwd(hidden_ND, head_VD, targets_N, weights_N, vocab):
    logits = _logits(hidden_ND, head_VD, vocab)
    # A device whose rows are all padding has no maximum of its own.
    top = largest(logits.max(-1, keepdims=True), MODEL)
    e = jnp.exp(logits - top)
    z = total(e.sum(-1, keepdims=True), MODEL)
    target = _target_logits(logits, targets_N, _own_ids(head_VD))
    losses = (top + jnp.log(z) - target)[:, 0]
    return (losses * weights_N).sum(), (hidden_ND, head_VD, targets_N, weights_N, e, z)


def _loss_bwd(vocab, saved, g):
    hidden, head, targets, weights, e, z = saved
    ids = _own_ids(head) + jax.lax.broadcasted_iota(jnp.int32, e.shape, 1)
    hit = ids == targets[:, None]
    d = ((e / z - hit) * (g * weights)[:, None]).astype(hidden.dtype)
    d_head = jax.lax.dot_general(d, hidden, (((0,), (0,)), ((), ()))).astype(head.dtype)
    return d @ head, d_head, None, None


_loss = jax.custom_vjp(
    lambda h, w, t, m, vocab: _loss_fwd(h, w, t, m, vocab)[0], nondiff_argnums=(4,)
)
_loss.defvjp(_loss_fwd, _loss_bwd)
