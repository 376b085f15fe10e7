"""A law to plan with, by name or from a fit: its parameters and the samples that give intervals.

A fit writes law.json and, beside it, bootstrap.csv: one row a bootstrap sample, one column a
parameter. A published law has no samples.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm.errors import BadInput
from lm.laws import kinds
from lm.laws.bootstrap import LEAST
from lm.laws.forms import LAWS
from lm.laws.published import published
from lm.laws.stored import read, samples

FRONTIER = ("N_0", "a", "D_0", "b")


class KnownLaw(NamedTuple):
    """A law, its parameters, their samples (name -> (samples,), or None) and where it came from.

    n_counts is "n_params" or "n_params_non_embedding"; n_runs and largest_flops describe the
    fitted table where the file says so. A fit by isoflop or envelope has a `frontier` (N_0, a,
    D_0, b of N* = N_0 C^a, D* = D_0 C^b): samples are then the frontier's, and params are those of
    the parametric fit beside it, empty where there is none.
    """

    name: str
    law: str
    params: dict[str, float]
    samples: dict[str, np.ndarray] | None
    source: str
    n_counts: str
    warnings: list[str]
    n_runs: int | None = None
    largest_flops: float | None = None
    path: Path | None = None
    method: str = "published"
    frontier: dict[str, float] | None = None


def read_law(text: str) -> KnownLaw:
    """Returns the published law of that name, or the one in that law.json (or its folder).

    Raises BadInput for an unknown name, a missing or broken file, a law without N and D.
    """
    path = Path(text)
    if path.is_dir():
        path = path / "law.json"
    if path.suffix != ".json" and "/" not in text:
        known = published(text)
        warnings = [f"{text} {known.note}"] if known.note else []
        warnings.append(f"{text} is published without samples of its parameters: no intervals")
        return KnownLaw(text, known.law, known.params, None, known.source, known.n_counts, warnings)
    content = read(path, kinds.LAW)
    if content is None:
        raise BadInput(f"there is no {path}: give the law.json that experiments.fit wrote")
    return _from_fit(path, content)


def _from_fit(path: Path, content: dict[str, Any]) -> KnownLaw:
    law = content["law"]
    if law not in LAWS or not {"n", "d"} <= set(LAWS[law].inputs):
        usable = ", ".join(name for name, f in LAWS.items() if {"n", "d"} <= set(f.inputs))
        raise BadInput(
            f"{path} holds the law {law!r}, which gives no loss from N and D: plan with one of "
            f"{usable}"
        )
    frontier = None
    if set(FRONTIER) <= set(content["params"]):
        frontier = _numbers(path, law, content["params"], FRONTIER)
    if frontier is None:
        params = _numbers(path, law, content["params"], LAWS[law].names)
    else:
        beside = (content.get("parametric") or {}).get("params") or {}
        whole = all(beside.get(name) is not None for name in LAWS[law].names)
        params = _numbers(path, law, beside, LAWS[law].names) if whole else {}
    warnings = [f"the fit warned: {w}" for w in content.get("warnings") or []]
    status = content.get("status", "converged")
    if status != "converged":
        warnings.insert(0, f"the fit ended as {status!r}: its numbers are not settled")
    names = LAWS[law].names if frontier is None else FRONTIER
    count = (content.get("bootstrap") or {}).get("samples")
    drawn = samples(path.with_name("bootstrap.csv"), names, count)
    if drawn is None or len(drawn[names[0]]) < LEAST:
        what = "there is no bootstrap.csv" if drawn is None else f"fewer than {LEAST} samples are"
        warnings.append(f"{what} beside {path}: no intervals; fit with --bootstrap=1000")
        drawn = None
    return KnownLaw(
        str(path), law, params, drawn, content.get("formula", LAWS[law].source),
        _n_counts(content), warnings, content.get("n_runs"), content.get("largest_flops"), path,
        str(content.get("method", "parametric")), frontier,
    )  # fmt: skip


def _numbers(
    path: Path, law: str, values: dict[str, Any], names: tuple[str, ...]
) -> dict[str, float]:
    for name in names:
        value = values.get(name)
        if value is None:
            raise BadInput(
                f"{path} has no usable value for the parameter {name} of {law}: fit it again"
            )
    return {name: float(values[name]) for name in names}


def _n_counts(content: dict[str, Any]) -> str:
    """What N counts: said by the file, or by the column that its command fitted."""
    by_command = "n_params_non_embedding" in str(content.get("command", ""))
    default = "n_params_non_embedding" if by_command else "n_params"
    return str(content.get("n_counts", default))
