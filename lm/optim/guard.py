"""Which steps count: the rule by which an update is left out, and the loss scale of float16.

A step is left out when its loss or its gradient norm is not finite (optim.on_nonfinite=skip, and
always in float16), or when one of them is a spike: more than optim.spike deviations above its mean
over the last optim.spike_window steps that counted, once there are so many. A step left out changes
neither weights nor the optimizer's state and count nor the window; the data goes on.

The loss scale of float16 (Micikevicius et al. 2018) is halved by every step that is not finite, to
1 at least, and doubled after precision.loss_scale_steps that were, in a row.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lm.config import OptimConfig, PrecisionConfig

KEPT, NOT_FINITE, SPIKE = 0, 1, 2  # metric `skipped`
SCALE_MAX = 2.0**24


class GuardState(NamedTuple):
    """Parts that are off are ()."""

    scale: Any  # float32: what the loss is multiplied by
    finite: Any  # int32: finite steps since the scale last changed
    counted: Any  # int32: steps in the window, ever
    losses: Any  # float32 [window]
    norms: Any


@dataclass(frozen=True)
class Guard:
    """The rule. Methods are pure."""

    skips: bool  # steps that are not finite
    scale: float | None  # the first loss scale; None: not float16
    scale_steps: int
    spike: float | None
    window: int

    def init(self) -> GuardState:
        scale: Any = ()
        finite: Any = ()
        counted: Any = ()
        losses: Any = ()
        norms: Any = ()
        if self.scale is not None:
            scale, finite = jnp.float32(self.scale), jnp.int32(0)
        if self.spike is not None:
            # Two arrays: each is given to the next step to write over.
            losses, norms = (jnp.zeros(self.window, jnp.float32) for _ in range(2))
            counted = jnp.int32(0)
        return GuardState(scale, finite, counted, losses, norms)

    def judge(self, state: GuardState, loss, norm) -> tuple[jax.Array, GuardState]:
        """Returns (KEPT, NOT_FINITE or SPIKE; the state after the step)."""
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        verdict = jnp.where(finite | (not self.skips), KEPT, NOT_FINITE)
        if self.spike is not None:
            full = state.counted >= self.window
            above = _above(state.losses, loss, self.spike) | _above(state.norms, norm, self.spike)
            verdict = jnp.where(finite & full & above, SPIKE, verdict)
            place, kept = state.counted % self.window, (verdict == KEPT) & finite
            put = lambda old, new: jnp.where(kept, old.at[place].set(new), old)
            state = state._replace(
                counted=state.counted + kept,
                losses=put(state.losses, loss),
                norms=put(state.norms, norm),
            )
        if self.scale is not None:
            run = jnp.where(finite, state.finite + 1, 0)
            grown = run >= self.scale_steps
            scale = jnp.where(
                finite, jnp.where(grown, state.scale * 2, state.scale), state.scale / 2
            )
            state = state._replace(
                scale=jnp.clip(scale, 1.0, SCALE_MAX), finite=jnp.where(grown, 0, run)
            )
        return verdict.astype(jnp.int32), state


def _above(window: jax.Array, value, deviations: float) -> jax.Array:
    return value > window.mean() + deviations * window.std()


def make_guard(o: OptimConfig, p: PrecisionConfig) -> Guard | None:
    """Returns the config's rule, None where every step counts."""
    scale = p.loss_scale if p.compute == "float16" else None
    skips = o.on_nonfinite == "skip" or scale is not None
    if not skips and o.spike is None:
        return None
    return Guard(skips, scale, p.loss_scale_steps, o.spike, o.spike_window)
