"""The final loss of a run from the first part of its learning curve.

A power law with a floor is fitted to the curve after its warm-up, averaged into bins that are even
in log tokens: neighbouring steps are noisy and not independent. It assumes that what remains of
the run looks like what was seen: a learning rate that decays later lowers the end below it.
"""

from dataclasses import dataclass

import numpy as np

from lm.errors import BadInput
from lm.laws.bootstrap import bootstrap
from lm.laws.fit import Fit, fit
from lm.laws.forms.power_floor import power_floor
from lm.laws.law import Law

Array = np.ndarray

BINS = 40


@dataclass(frozen=True)
class FinalLoss:
    """Predicted loss at `at` tokens, with 80 and 95 % intervals, and how far ahead that is.

    ahead is at / last token seen; warnings say what the curve does not hold.
    """

    loss: float
    interval_80: tuple[float, float]
    interval_95: tuple[float, float]
    ahead: float
    fit: Fit
    warnings: list[str]


def final_loss(
    tokens: Array,
    loss: Array,
    at: float,
    *,
    skip: float = 0.1,
    law: Law = power_floor,
    samples: int = 500,
    seed: int = 0,
) -> FinalLoss:
    """The loss at `at` tokens from a curve (tokens (m,), loss (m,)) whose first `skip` is ignored.

    Raises BadInput for a curve too short to fit, or a target that the curve has passed.
    """
    tokens, loss = np.asarray(tokens, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if tokens.shape != loss.shape or tokens.ndim != 1:
        raise BadInput(f"the curve has {tokens.size} token counts and {loss.size} losses")
    usable = np.isfinite(loss) & (loss > 0) & (tokens > 0)
    tokens, loss = tokens[usable], loss[usable]
    if not tokens.size or at <= tokens.max():
        raise BadInput(
            f"the curve already reaches {tokens.max(initial=0):.4g} tokens: ask beyond it"
        )
    late = tokens >= skip * tokens.max()
    x, y, counts = binned(tokens[late], loss[late])
    if x.size < len(law.names) + 3:
        raise BadInput(
            f"{x.size} separate points of the curve cannot fit law {law.name}: "
            f"log at least {len(law.names) + 3} of them after the first {skip:.0%}"
        )
    found = fit(law, {"x": x}, y, objective="squared_log", weights=counts)
    again = bootstrap(found, samples, seed)
    point = {"x": np.array([float(at)])}
    ends = law.predict(again.params, point)[:, 0]
    low95, low80, high80, high95 = np.percentile(ends, [2.5, 10, 90, 97.5])
    ahead = float(at / tokens.max())
    warnings = list(found.warnings)
    if ahead > 4:
        warnings.append(f"predicting {ahead:.1f} times beyond the curve: intervals are too narrow")
    return FinalLoss(
        float(found.predict(point)[0]), (float(low80), float(high80)),
        (float(low95), float(high95)), ahead, found, warnings,
    )  # fmt: skip


def binned(tokens: Array, loss: Array, bins: int = BINS) -> tuple[Array, Array, Array]:
    """Geometric means of tokens and loss, and counts, in every filled bin of log tokens."""
    log_t = np.log(tokens)
    edges = np.linspace(log_t.min(), log_t.max() * (1 + 1e-15) + 1e-12, bins + 1)
    code = np.clip(np.searchsorted(edges, log_t, side="right") - 1, 0, bins - 1)
    counts = np.bincount(code, minlength=bins)
    seen = counts > 0
    x = np.bincount(code, log_t, minlength=bins)[seen] / counts[seen]
    y = np.bincount(code, np.log(loss), minlength=bins)[seen] / counts[seen]
    return np.exp(x), np.exp(y), counts[seen].astype(np.float64)
