"""Optimizers from the config: an optax transform whose updates the train step scales and subtracts.

Which parameters decay and which are matrices comes from the parameter table, so every parameter is
covered by construction. A new optimizer is one entry of OPTIMIZERS.
"""

from collections.abc import Callable, Mapping

import jax
import optax

from lm.config import OptimConfig
from lm.model.spec import ParamSpec, Table
from lm.optim.muon import scale_by_muon

OPTIMIZERS: Mapping[str, Callable[[OptimConfig, Table], optax.GradientTransformation]] = {
    "adamw": lambda o, table: optax.scale_by_adam(o.b1, o.b2, o.eps),
    "muon": scale_by_muon,
    "sgd": lambda o, table: optax.trace(o.b1),
}


def build(o: OptimConfig, table: Table) -> optax.GradientTransformation:
    """Returns the transform from clipped gradients to updates for a learning rate of 1.

    Decoupled weight decay (Loshchilov and Hutter 2019) is part of the updates, so it follows the
    schedule; it acts on matrices and embeddings, not on norms and biases.
    """
    decayed = jax.tree.map(
        lambda row: row.decayed, table, is_leaf=lambda x: isinstance(x, ParamSpec)
    )
    return optax.chain(
        OPTIMIZERS[o.optimizer](o, table), optax.add_decayed_weights(o.weight_decay, decayed)
    )
