"""Learning-rate schedules: a share of the peak for every optimizer step.

Step s counts from 1 to n. Warm-up of w steps: s / w, so the first step already moves and step w is
at the peak. Then, with r = (s - w) / (n - w) and floor f:
cosine  f + (1 - f)(1 + cos(pi r)) / 2     linear  1 - (1 - f) r     constant  1
rsqrt   sqrt(w / s), not below f (Raffel et al. 2020; w at least 1)
wsd     1, then linear to f over the last d steps (Hu et al. 2024)
A new schedule is one entry of SCHEDULES.
"""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from lm.config import OptimConfig

# (step, warm-up steps w, decay steps d, all steps n, floor f) -> share of the peak after warm-up
SCHEDULES: Mapping[str, Callable] = {
    "cosine": lambda s, w, d, n, f: f + (1 - f) * (1 + jnp.cos(jnp.pi * _past(s, w, n))) / 2,
    "linear": lambda s, w, d, n, f: 1 - (1 - f) * _past(s, w, n),
    "constant": lambda s, w, d, n, f: jnp.ones_like(s),
    "rsqrt": lambda s, w, d, n, f: jnp.maximum(jnp.sqrt(max(w, 1) / s), f),
    "wsd": lambda s, w, d, n, f: 1 - (1 - f) * _past(s, n - d, n),
}


def _past(s, start, end):
    return jnp.clip((s - start) / max(end - start, 1), 0.0, 1.0)


def learning_rate(o: OptimConfig, n_steps: int) -> Callable[[jax.Array], jax.Array]:
    """Returns f(step) giving the float32 learning rate of optimizer step `step`, from 1."""
    warmup = warmup_steps(o, n_steps)
    decay = n_steps - decay_start(o, n_steps)
    shape = SCHEDULES[o.schedule]

    def rate(step: jax.Array) -> jax.Array:
        s = step.astype(jnp.float32)
        share = shape(s, warmup, decay, n_steps, o.final_fraction)
        return o.learning_rate * jnp.where(s <= warmup, s / max(warmup, 1), share)

    return rate


def warmup_steps(o: OptimConfig, n_steps: int) -> int:
    """Returns w, at most n."""
    if o.warmup_steps is not None:
        return min(o.warmup_steps, n_steps)
    return _steps(o.warmup_fraction, n_steps)


def decay_start(o: OptimConfig, n_steps: int) -> int:
    """Returns the last step of wsd before its decay: up to there all lengths of run are alike."""
    # Rounding both up may overlap by a step: the decay gives way.
    return max(n_steps - _steps(o.decay_fraction, n_steps), warmup_steps(o, n_steps))


def _steps(fraction: float, n_steps: int) -> int:
    """Returns that share of the steps, rounded up, but 0.07 of 100 is 7 (and 7.000000000000001)."""
    return math.ceil(fraction * n_steps * (1 - 1e-12))
