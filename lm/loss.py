"""Cross-entropy of next tokens: the one definition of the loss, for any layout.

A step's loss is the sum of token losses over all valid tokens of the whole step, divided by their
number. Micro-batches and shards add their sums; nothing is averaged twice.
"""

import jax
import jax.numpy as jnp


def token_loss_sum(
    hidden_ND: jax.Array, head_VD: jax.Array, targets_N: jax.Array, weights_N: jax.Array, vocab: int
) -> jax.Array:
    """Returns the sum over tokens of weight * (logsumexp(logits) - logit of the target), nats.

    hidden and head in the compute dtype; logits, softmax and sums in float32. Rows of the head from
    `vocab` on are padding and never take part. The gradient of the logits is formed once, in one
    pass over them.
    """
    return _loss(hidden_ND, head_VD, targets_N, weights_N, vocab)


def _logits(hidden_ND, head_VD, vocab):
    logits = jax.lax.dot_general(
        hidden_ND, head_VD, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    if head_VD.shape[0] != vocab:
        logits = jnp.where(jnp.arange(head_VD.shape[0]) < vocab, logits, -jnp.inf)
    return logits


def _loss_fwd(hidden_ND, head_VD, targets_N, weights_N, vocab):
    logits = _logits(hidden_ND, head_VD, vocab)
    top = logits.max(-1, keepdims=True)
    e = jnp.exp(logits - top)
    z = e.sum(-1, keepdims=True)
    target = jnp.take_along_axis(logits, targets_N[:, None], 1)
    losses = (top + jnp.log(z) - target)[:, 0]
    return (losses * weights_N).sum(), (hidden_ND, head_VD, targets_N, weights_N, e, z)


def _loss_bwd(vocab, saved, g):
    hidden, head, targets, weights, e, z = saved
    hit = jax.lax.broadcasted_iota(jnp.int32, e.shape, 1) == targets[:, None]
    d = ((e / z - hit) * (g * weights)[:, None]).astype(hidden.dtype)
    d_head = jax.lax.dot_general(d, hidden, (((0,), (0,)), ((), ()))).astype(head.dtype)
    return d @ head, d_head, None, None


_loss = jax.custom_vjp(
    lambda h, w, t, m, vocab: _loss_fwd(h, w, t, m, vocab)[0], nondiff_argnums=(4,)
)
_loss.defvjp(_loss_fwd, _loss_bwd)
