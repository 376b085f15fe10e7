"""What training minimises: the sum of token losses of a batch, whole or from the last layer on."""

from typing import Any

import jax

from lm.collectives import gather_time
from lm.loss import Loss, Rule, token_losses
from lm.model.transformer import Model
from lm.precision import wide

Batch = Any  # lm.data Batch: inputs, targets, weights [B, T], segments and positions or None


def loss_sum(
    model: Model, params: Any, batch: Batch, key: jax.Array | None = None, z_loss: float = 0.0
) -> Loss:
    """Returns the sums of the token losses of a device's rows, nats; key is for dropout."""
    x_BTD = model.body(params, batch.inputs, batch.segments, batch.positions, key)
    return last_loss_sum(model, params, x_BTD, batch, z_loss)


def last_loss_sum(
    model: Model, params: Any, x_BTD: jax.Array, batch: Batch, z_loss: float = 0.0
) -> Loss:
    """Returns the same from the last layer's output: what the last pipeline stage computes."""
    hidden_BTD = gather_time(model.finish(params, x_BTD))
    vocab = model.config.vocab_size
    assert vocab is not None
    return token_losses(
        hidden_BTD.reshape(-1, hidden_BTD.shape[-1]),
        model.head(params).astype(hidden_BTD.dtype),
        batch.targets.reshape(-1),
        batch.weights.reshape(-1).astype(wide(hidden_BTD.dtype)),
        Rule(vocab, model.config.logit_softcap, z_loss),
    )
