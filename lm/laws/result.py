"""law.json: everything a fit says, written whole or not at all, with bootstrap.csv beside it."""

import json
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from lm.laws.bootstrap import LEAST, PERCENTILES, Samples, bias_corrected
from lm.laws.fit import Fit
from lm.laws.isoflop import Frontier
from lm.laws.law import Law
from lm.laws.runs import Runs
from lm.laws.stored import plain
from lm.whole_file import replacing, sync, unwritable

Array = np.ndarray


def law_dict(
    fit: Fit, runs: Runs, samples: Samples | None, method: str, **more: Any
) -> dict[str, Any]:
    """The content of law.json for a fit: plain numbers, strings, lists and dicts."""
    goal = fit.problem.objective
    content: dict[str, Any] = {
        "law": fit.law.name,
        "formula": fit.law.source,
        "method": method,
        "params": fit.params,
        "stderr": {},
        "intervals": {},
        "exponents": fit.exponents,
        "objective": {
            "name": goal.name,
            "delta": goal.delta if np.isfinite(goal.delta) else None,
            "sum": fit.sum,
            "mean": fit.mean,
            "gradient": fit.gradient,
        },
        "starts": {"tried": fit.tried, "agreeing": fit.agreeing},
        "n_runs": len(runs),
        "excluded": runs.excluded,
        "status": fit.status,
        "warnings": [*runs.warnings, *fit.warnings],
        **table_facts(runs),
    }
    if samples is not None and len(samples) >= LEAST:
        content["stderr"], content["intervals"] = spread(fit, samples)
        content["bootstrap"] = {
            "samples": len(samples),
            "failed": samples.failed,
            "intervals": "bias-corrected percentiles",
        }
    content.update(more)
    content["versions"] = versions()
    return content


def frontier_dict(found: Frontier, law: Law, runs: Runs, method: str) -> dict[str, Any]:
    """The content of law.json for approach 1 or 2: params are N_0, a, D_0, b."""
    stderr, intervals = {}, {}
    for name, values in found.samples.items():
        if values.size >= LEAST:
            stderr[name], intervals[name] = _spread(values, found.params[name])
    return {
        "law": law.name,
        "formula": "N* = N_0 C^a, D* = D_0 C^b, Hoffmann et al. 2022, section 3",
        "method": method,
        "params": found.params,
        "stderr": stderr,
        "intervals": intervals,
        "exponents": found.exponents,
        "groups": [
            {
                "name": g.name,
                "flops": g.flops,
                "n_runs": int(g.members.size),
                "n": g.n,
                "d": g.d,
                "loss": g.loss,
                "skipped": g.skipped,
                "center": g.center,
                "curve": g.curve,
            }
            for g in found.groups
        ],
        "objective": None,
        "starts": None,
        "n_runs": len(runs),
        "excluded": runs.excluded,
        "status": "converged",
        "warnings": [*runs.warnings, *found.warnings],
        **table_facts(runs),
        "versions": versions(),
    }


def frontier_samples(found: Frontier) -> Samples | None:
    """The resampled frontiers as samples for bootstrap.csv."""
    if not found.samples:
        return None
    theta = np.stack(list(found.samples.values()), axis=1)
    return Samples(found.samples, theta, 0, np.ones(len(theta), dtype=bool))


def table_facts(runs: Runs) -> dict[str, Any]:
    """Which columns were read and how far the table reaches; what planning needs to know."""
    n_column = runs.columns.get("n", "")
    facts: dict[str, Any] = {
        "columns": runs.columns,
        "n_counts": "n_params_non_embedding" if "non_embedding" in n_column else "n_params",
        "range": {role: [float(v.min()), float(v.max())] for role, v in runs.x.items() if v.size},
    }
    flops = runs.x.get("flops")
    if flops is None and {"n", "d"} <= runs.x.keys():
        flops = 6.0 * runs.x["n"] * runs.x["d"]
    if flops is not None and np.all(np.isfinite(flops)):
        facts["largest_flops"] = float(flops.max())
    return facts


def quantities(fit: Fit, params: Mapping[str, Any]) -> dict[str, Array]:
    """What is reported with uncertainty: parameters, logarithms of positive ones, exponents."""
    found = {name: np.asarray(params[name], dtype=np.float64) for name in fit.law.names}
    with np.errstate(divide="ignore"):
        found |= {f"log_{name}": np.log(found[name]) for name in fit.law.log}
    exponents = fit.law.exponents(params)
    for name, value in (exponents or {}).items():
        key = name if name not in fit.law.names else f"exponent_{name}"
        found[key] = np.broadcast_to(value, found[fit.law.names[0]].shape)
    return found


def spread(fit: Fit, samples: Samples) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Standard errors and bias-corrected percentiles of every reported quantity."""
    stderr, intervals = {}, {}
    own = quantities(fit, fit.params)
    for name, values in quantities(fit, samples.params).items():
        stderr[name], intervals[name] = _spread(values, float(own[name]))
    return stderr, intervals


def _spread(values: Array, estimate: float) -> tuple[float, dict[str, float]]:
    levels = bias_corrected(values, estimate)
    percentiles = {f"{p:g}": v for p, v in zip(PERCENTILES, levels, strict=True)}
    constant = bool(np.all(values == values[0]))  # fixed by the user
    return 0.0 if constant else float(np.std(values, ddof=1)), percentiles


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {"python": platform.python_version(), "numpy": np.__version__}


def write_law(folder: str | Path, content: dict[str, Any], samples: Samples | None = None) -> Path:
    """Writes law.json and bootstrap.csv (a row a sample, a column a parameter); returns its path.

    Full double precision. Both are on the disk before either takes its place, the law first, and
    samples of another fit go before: none ever lie beside a law that is not theirs. Raises
    CannotSave where the disk is full, BadInput where the folder cannot be written.
    """
    folder = Path(folder)
    path, table = folder / "law.json", folder / "bootstrap.csv"
    text = json.dumps(plain(content), indent=2, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new: list[Path] = []
        with ExitStack() as written:
            if samples is not None and len(samples):
                new.append(written.enter_context(replacing(table)))
                new[0].write_text(_table(samples))
            with replacing(path) as temporary:
                temporary.write_text(text)
                sync(temporary, *new)
                table.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "give another --out") from error
    return path


def _table(samples: Samples) -> str:
    names = list(samples.params)
    rows = zip(*(samples.params[n].tolist() for n in names), strict=True)
    lines = [",".join(names), *(",".join(map(repr, row)) for row in rows)]
    return "\n".join(lines) + "\n"
