"""Ablations: variants of one config, each with the same seeds, compared seed by seed.

The seed is the noise: variants of one seed read the same data in the same order, so the difference
of two variants is taken within each seed, and its standard error from those differences.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.errors import BadInput
from lm.sweep.points import Point
from lm.sweep.table import result_of

CONFIDENCE = 0.95


def settings(ablation: Mapping[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (variant, overrides) of every run; raises BadInput where it is no ablation."""
    variants, seeds = ablation.get("variants"), ablation.get("seeds")
    if not isinstance(variants, Mapping) or len(variants) < 2:
        raise BadInput(f"get_ablation() of {where} needs variants: a dict of two or more")
    if not isinstance(seeds, Sequence) or len(set(seeds)) < 2 or len(set(seeds)) < len(seeds):
        raise BadInput(f"get_ablation() of {where} needs seeds: two different ones or more")
    for name, overrides in variants.items():
        if not isinstance(overrides, Mapping) or not str(name).replace("_", "a").isalnum():
            raise BadInput(
                f"get_ablation() of {where} has the variant {name!r}: a name of letters, digits "
                "and underscores for a dict of fields"
            )
    return [(name, {**changed, "seed": s}) for name, changed in variants.items() for s in seeds]


def compare(points: Sequence[Point], runs: Path) -> dict[str, Any]:
    """Returns ablation.json: every variant's losses, mean and standard error, and its difference to
    the first variant, paired by seed, with the interval of Student's t."""
    names = list(dict.fromkeys(p.group for p in points))
    losses: dict[str, dict[int, float]] = {name: {} for name in names}
    sizes, diverged = {}, []
    for p in points:
        result = result_of(p, runs)
        if result is None or result["eval_loss"] is None:
            diverged.append(p.run_id)
            continue
        losses[p.group][p.config.seed] = result["eval_loss"]
        sizes[p.group] = result["n_params"]
    baseline = names[0]
    rows = []
    for name in names:
        found = losses[name]
        paired = [loss - losses[baseline][s] for s, loss in found.items() if s in losses[baseline]]
        rows.append(
            {
                "variant": name,
                "settings": _settings(next(p for p in points if p.group == name)),
                "n_params": sizes.get(name),
                "losses": {str(seed): loss for seed, loss in found.items()},
                **_mean(list(found.values())),
                "difference": None if name == baseline else _mean(paired),
            }
        )
    return {"baseline": baseline, "variants": rows, "diverged": diverged}


def _settings(p: Point) -> dict[str, Any]:
    """What makes the variant: the fields it sets, without the seed, which each of its runs has."""
    return {name: value for name, value in p.swept.items() if name != "seed"}


def _mean(values: list[float]) -> dict[str, Any]:
    """Returns mean, standard error and 95 % interval, null where there are too few."""
    from scipy.stats import t

    n = len(values)
    mean = math.fsum(values) / n if n else None
    error = interval = None
    if mean is not None and n > 1:
        error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
        reach = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
        interval = [mean - reach, mean + reach]
    return {"mean": mean, "stderr": error, "interval_95": interval, "n": n}


def text(found: Mapping[str, Any]) -> str:
    """Returns the table as lines, in the order of the variants."""
    rows = found["variants"]
    wide = max(len(r["variant"]) for r in rows)
    head = f"{'variant':{wide}}  {'n_params':>10}  seeds  {'loss':>16}"
    lines = [f"{head}  less {found['baseline']}, paired"]
    for r in rows:
        size = "" if r["n_params"] is None else f"{r['n_params']:,}"
        own = "the baseline" if r["difference"] is None else _said(r["difference"], "+")
        lines.append(f"{r['variant']:{wide}}  {size:>10}  {r['n']:5}  {_said(r, ''):>16}  {own}")
    lines.append("loss: mean and standard error over seeds, nats per token")
    lines += [f"left out, it diverged: {run}" for run in found["diverged"]]
    return "\n".join(lines)


def _said(r: Mapping[str, Any], sign: str) -> str:
    if r["mean"] is None:
        return "no run ended"
    error = "" if r["stderr"] is None else f" ± {r['stderr']:.4f}"
    return f"{r['mean']:{sign}.4f}{error}"
