"""What a law.json stands on, gathered again for figures and the report: its rows, law and samples.

Takes tables and dicts, returns plain values; imports pandas only through lm/laws/runs.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.allocate import Optimum, frontier
from lm.laws.bootstrap import LEAST
from lm.laws.forms import LAWS
from lm.laws.forms.bnsl import bnsl, n_breaks
from lm.laws.isoflop import Frontier, isoflop
from lm.laws.law import Law
from lm.laws.law_file import FRONTIER
from lm.laws.runs import Runs, load, read_runs
from lm.laws.stored import samples
from lm.laws.surface import Surface, surface

Array = np.ndarray


class TableLedger:
    """What a model of N parameters costs by the table itself: log(flops / D) a line in log N.

    The convention of lm/laws/allocate.py for a reader who has runs and no shapes; where the table
    counts 6 N D it is exactly that. `log_size` is log N.
    """

    convention = "table"

    def __init__(self, runs: Runs):
        log_n, plain = np.log(runs.x["n"]), 6 * runs.x["n"] * runs.x["d"]
        flops = runs.x.get("flops", plain)
        usable = np.isfinite(flops) & (flops > 0)
        ratio = np.log(flops[usable] / plain[usable]) if usable.any() else np.zeros(1)
        self._line = np.zeros(2)  # slope and level of the logarithm of flops / (6 N D)
        if np.abs(ratio).max() > 1e-6:
            sizes = np.unique(np.round(log_n[usable], 6)).size
            line = np.polyfit(log_n[usable], ratio, 1 if sizes > 2 else 0)
            self._line = np.append(np.zeros(2 - line.size), line)
        self.bounds = (float(log_n.min()) - 5.0, float(log_n.max()) + 35.0)

    def counts(self, log_size: Any) -> tuple[Any, Any, Any]:
        """Returns (N, training FLOPs per token, forward FLOPs per token)."""
        n = np.exp(log_size)
        train = 6 * n * np.exp(np.polyval(self._line, log_size))
        return n, train, train / 3

    def log_size(self, n: Any) -> Any:
        """Returns log N."""
        return np.log(n)

    def tokens(self, n: Any, flops: Any) -> Any:
        """Returns the D that `flops` buys a model of n parameters."""
        return flops / self.counts(np.log(n))[1]

    def best(self, law: Surface, flops: Array) -> Optimum:
        """Returns the optima over an array of budgets, fields of shape (budgets, samples).

        Closed form: with C = 6 k N^s D the least A N^-alpha + B D^-beta lies where
        alpha A N^-alpha = s beta B D^-beta.
        """
        core = law.core
        if core is None or law.unique is not None:
            return frontier(law, flops, self)
        s, log_k = 1.0 + self._line[0], self._line[1]
        budget = np.log(np.asarray(flops, np.float64) / 6) - log_k
        with np.errstate(all="ignore"):
            total = core.alpha + s * core.beta
            front = np.log(core.alpha * core.A) - np.log(s * core.beta * core.B)
            log_n = (front + core.beta * budget) / total
            n = np.where((core.alpha > 0) & (core.beta > 0), np.exp(log_n), np.nan)
            d = self.tokens(n, flops)
            loss = law.loss(n, d)
        spent = np.broadcast_to(flops, n.shape).T
        return Optimum(n.T, d.T, loss.T, spent, np.zeros_like(spent))


@dataclass(frozen=True)
class Evidence:
    """A fitted law with the runs it was fitted to.

    params are the law's, empty where the fit is a frontier without a surface beside it; samples are
    the bootstrap's of the same parameters, or None. `frontier` holds the IsoFLOP minima of the same
    rows, None where `no_frontier` says why. frame is the whole table, `used` the numbers of the
    fitted rows, counted from 1.
    """

    frame: Any
    runs: Runs
    used: Array
    law: Law
    params: dict[str, float]
    samples: dict[str, Array] | None
    content: Mapping[str, Any]
    frontier: Frontier | None = None
    no_frontier: str = ""

    @property
    def predicted(self) -> Array:
        """The law at every fitted row, (n,)."""
        return self.law.predict(self.params, self.runs.x)

    @property
    def surface(self) -> Surface | None:
        """L(N, D) of the law, None where it has none."""
        return self._surface(self.params)

    @property
    def surfaces(self) -> Surface | None:
        """L(N, D) of every bootstrap sample, None without samples."""
        return None if self.samples is None else self._surface(self.samples)

    def _surface(self, params: Mapping[str, Any]) -> Surface | None:
        if not params or self.law.name not in LAWS or not {"n", "d"} <= set(self.law.inputs):
            return None
        return surface(self.law.name, params)


def gather(content: Mapping[str, Any], table: Any, drawn: Path | None = None) -> Evidence:
    """The evidence of a law.json's content, its table of runs and the path of its bootstrap.csv.

    The table is a path or a DataFrame; samples need not be there. Raises BadInput where they do not
    belong together.
    """
    frame = load(table)
    law = law_of(content)
    gone = {int(item["row"]) for item in content.get("excluded") or []}
    numbers = np.array([i for i in range(1, len(frame) + 1) if i not in gone], dtype=int)
    if not numbers.size or len(frame) < max(gone, default=0):
        raise BadInput(
            f"the table of {len(frame)} rows is not the one that the law was fitted to: "
            "give the --runs of the fit"
        )
    kept = frame.iloc[numbers - 1].reset_index(drop=True)
    given = content.get("columns") or {}
    columns = {r: c for r, c in given.items() if c in kept.columns}
    runs = read_runs(kept, law, columns, extra=("unique",))
    if len(runs) != content.get("n_runs", len(runs)):
        raise BadInput(
            f"the law was fitted to {content['n_runs']} runs and the table has {len(runs)} of "
            "them: give the --runs of the fit, or fit again"
        )
    used = numbers[runs.rows - 1]
    params, own = _params(content, law)
    found = None
    if own and drawn is not None:  # else they are samples of the frontier
        count = (content.get("bootstrap") or {}).get("samples")
        found = samples(drawn, law.names, count)
        found = found if found and len(found[law.names[0]]) >= LEAST else None
    frontier, reason = minima(runs, str(content.get("curve") or "parabola"))
    return Evidence(frame, runs, used, law, params, found, content, frontier, reason)


def law_of(content: Mapping[str, Any]) -> Law:
    """The law that a law.json names; BadInput for one that this version does not know."""
    name = content.get("law")
    if name == "bnsl":
        return bnsl(n_breaks(content["params"]))
    if name not in LAWS:
        raise BadInput(f"law.json holds the law {name!r}, which is not one of {', '.join(LAWS)}")
    return LAWS[str(name)]


def minima(runs: Runs, curve: str = "parabola") -> tuple[Frontier | None, str]:
    """The IsoFLOP frontier of the runs, or None and the reason."""
    if not {"n", "d"} <= runs.x.keys():
        return None, "the law has no N and D"
    try:
        return isoflop(runs, curve), ""
    except BadInput as e:
        return None, str(e)


def _params(content: Mapping[str, Any], law: Law) -> tuple[dict[str, float], bool]:
    """The surface's parameters, and whether they are the fit's own: a frontier's law.json has them
    beside, where it has any."""
    beside = (content.get("parametric") or {}).get("params") or {}
    for source in (content["params"], beside):
        if all(source.get(name) is not None for name in law.names):
            return {name: float(source[name]) for name in law.names}, source is content["params"]
    lacking = [name for name in law.names if name not in content["params"]]
    if not set(FRONTIER) <= set(content["params"]):
        raise BadInput(
            f"law.json lacks the parameter {lacking[0]} of law {law.name}: fit it again with "
            "experiments.fit"
        )
    return {}, False
