"""Optimizers from the config: transforms whose updates the train step scales and subtracts.

Which parameters decay, which are matrices and which learn at a rate of their own comes from
lm/optim/groups.py, so every parameter is covered by construction. A new optimizer is one entry of
OPTIMIZERS.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax

from lm.config import OptimConfig, PrecisionConfig
from lm.model.spec import Table, each
from lm.optim.adafactor import scale_by_adafactor
from lm.optim.clipping import clip_update
from lm.optim.groups import groups
from lm.optim.guard import Guard, make_guard
from lm.optim.muon import scale_by_muon
from lm.optim.stale import stale

OPTIMIZERS: Mapping[str, Callable[[OptimConfig, Table], optax.GradientTransformation]] = {
    "adamw": lambda o, table: optax.scale_by_adam(o.b1, o.b2, o.eps),
    "adafactor": scale_by_adafactor,
    "lion": lambda o, table: optax.scale_by_lion(o.b1, o.b2),
    "muon": scale_by_muon,
    "sgd": lambda o, table: optax.trace(o.b1),
}
ELEMENTWISE = ("adamw", "lion", "sgd")
ADAFACTOR_CLIP = 1.0  # part of the algorithm; optim.clip_update replaces it


class Optimizer(NamedTuple):
    """An optax transform, and what else a step needs to keep beside its state."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]
    elementwise: bool  # an update's value needs no other value of its array
    guard: Guard | None  # None: every step counts
    ema_decay: float | None  # None: no average of the weights


def build(o: OptimConfig, table: Table, precision: PrecisionConfig | None = None) -> Optimizer:
    """Returns the transform from clipped gradients to updates for a learning rate of 1.

    precision adds the loss scale of float16; None is float32.
    Decoupled weight decay (Loshchilov and Hutter 2019) is part of the updates, so it follows the
    schedule; it acts on matrices and embeddings, not on norms and biases, and not on what
    optim.no_decay names.
    """
    found = groups(o, table)
    steps = [OPTIMIZERS[o.optimizer](o, table)]
    limit = o.clip_update or (ADAFACTOR_CLIP if o.optimizer == "adafactor" else None)
    if limit:
        steps.append(clip_update(limit, table))
    decayed = each(table, lambda path, _: found[path].decayed)
    steps.append(optax.add_decayed_weights(o.weight_decay, decayed))
    if o.learning_rate_factors:
        factors = each(table, lambda path, _: found[path].factor)
        steps.append(
            optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * f, updates, factors))
        )
    tx = stale(optax.chain(*steps), o.staleness)
    guard = make_guard(o, precision or PrecisionConfig())
    elementwise = o.optimizer in ELEMENTWISE and not limit
    return Optimizer(tx.init, tx.update, elementwise, guard, o.ema_decay)
