"""A moving average of the weights (Polyak and Juditsky 1992): what is evaluated where it is on."""

from typing import Any

import jax
import jax.numpy as jnp


def updated(average: Any, params: Any, decay: float, step: jax.Array) -> Any:
    """Returns d average + (1 - d) params after step `step` (from 1), d = min(decay, (1 + step) /
    (10 + step)): the first steps, far from the end, are soon forgotten."""
    s = step.astype(jnp.float32)
    d = jnp.minimum(decay, (1 + s) / (10 + s))
    return jax.tree.map(lambda a, p: d * a + (1 - d) * p, average, params)
