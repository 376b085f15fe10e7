"""Every figure by name, drawn from whatever a law and its runs hold.

Each entry takes the Material and returns a Figure, or raises BadInput with the reason why this
material does not hold it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lm.errors import BadInput
from lm.laws.bootstrap import LEAST
from lm.laws.delta import noise_of
from lm.laws.evidence import Evidence, TableLedger
from lm.laws.figures import broken, checks, curves, isoflop, source, surface, uncertainty
from lm.laws.figures.curves import LearningCurve
from lm.laws.fit import Fit, fit
from lm.laws.isoflop import budgets
from lm.laws.profile import profile
from lm.laws.published import PUBLISHED
from lm.laws.quantity import quantity
from lm.laws.surface import Surface
from lm.laws.validate import roll_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (80.0, 95.0)
COMPARED = ("chinchilla_2022_tex", "chinchilla_replication_2024")


@dataclass(frozen=True)
class Material:
    """A law with its runs, and what else there is: learning curves, a plan, a held-out run.

    isoflop_samples: resampled N_0, a, D_0, b of the minima, for their band.
    """

    evidence: Evidence
    curves: list[LearningCurve] = field(default_factory=list)
    plan: Mapping[str, Any] | None = None
    prediction: Mapping[str, Any] | None = None
    isoflop_samples: Mapping[str, np.ndarray] | None = None

    @cached_property
    def fit(self) -> Fit:
        """The fit made again from its rows; BadInput where it was made in another way."""
        e, goal = self.evidence, self.evidence.content.get("objective")
        if not goal:
            raise BadInput("the law was not fitted by an objective (method isoflop or envelope)")
        settings = {"delta": goal["delta"]} if goal.get("delta") else {}
        again = fit(e.law, e.runs.x, e.runs.y, objective=goal["name"], **settings)
        for name, value in e.params.items():
            if abs(again.params[name] - value) > 1e-5 * abs(value) + 1e-12:
                raise BadInput(
                    "law.json was fitted with constraints, weights or without outliers, which it "
                    "does not hold: the same fit cannot be made again"
                )
        return again

    def surface(self) -> Surface:
        """The law's L(N, D)."""
        found = self.evidence.surface
        if found is None:
            raise BadInput(f"law {self.evidence.law.name} gives no loss from N and D")
        return found


def isoflop_curves(m: Material) -> "Figure":
    e = m.evidence
    if e.frontier is None:
        raise BadInput(f"no IsoFLOP minima: {e.no_frontier}")
    return isoflop.isoflop_curves(e.runs, e.frontier, e.surface)


def minima_powers(m: Material) -> "Figure":
    e = m.evidence
    if e.frontier is None:
        raise BadInput(f"no IsoFLOP minima: {e.no_frontier}")
    return isoflop.minima_powers(e.frontier, m.isoflop_samples)


def surface_frontier(m: Material) -> "Figure":
    e = m.evidence
    return surface.surface_frontier(e.runs, m.surface(), e.surfaces, e.frontier, m.plan)


def frontier_bands(m: Material) -> "Figure":
    return surface.frontier_bands(m.evidence.runs, m.surface(), m.evidence.surfaces, m.plan)


def learning_curves(m: Material) -> "Figure":
    if not m.curves:
        raise BadInput("there are no learning curves: they are read from runs/*/metrics.jsonl")
    return curves.learning_curves(m.curves)


def residuals(m: Material) -> "Figure":
    e = m.evidence
    if not e.params:
        raise BadInput("the fit holds a frontier and no law of the loss")
    role = next(r for r in ("flops", "n", *e.law.inputs) if r in e.runs.x)
    flagged = [item["row"] for item in e.content.get("outliers") or []]
    rows = np.flatnonzero(np.isin(e.used, flagged))
    return checks.residuals(e.runs.y, e.predicted, e.runs.x[role], role, rows, _column(e, role))


def predicted_measured(m: Material) -> "Figure":
    e = m.evidence
    if not e.params:
        raise BadInput("the fit holds a frontier and no law of the loss")
    held = m.prediction or {}
    # Else it is not trained yet, or it diverged.
    measured = None not in (held.get("predicted"), held.get("measured"))
    return checks.predicted_measured(e.runs.y, e.predicted, held if measured else None)


def bootstrap_cloud(m: Material) -> "Figure":
    e = m.evidence
    if e.samples is None:
        raise BadInput(
            f"there is no bootstrap.csv of {LEAST} samples beside law.json: fit with "
            "--bootstrap=1000"
        )
    names = ("alpha", "beta") if {"alpha", "beta"} <= set(e.law.names) else e.law.names[-2:]
    others = {
        name: (PUBLISHED[name].params[names[0]], PUBLISHED[name].params[names[1]])
        for name in COMPARED
        if e.law.name == PUBLISHED[name].law
    }
    near = _near(e.samples, names, others)
    return uncertainty.bootstrap_cloud(
        e.samples[names[0]], e.samples[names[1]], (e.params[names[0]], e.params[names[1]]),
        (names[0], names[1]), near,
    )  # fmt: skip


def _near(samples: Mapping[str, np.ndarray], names: Any, others: dict) -> dict:
    """The published points that do not stretch the axes to many times the cloud."""
    x, y = (samples[name] for name in names)
    reach = [np.ptp(np.quantile(v, [0.01, 0.99])) for v in (x, y)]
    return {
        k: v for k, v in others.items()
        if abs(v[0] - np.median(x)) < reach[0] and abs(v[1] - np.median(y)) < reach[1]
    }  # fmt: skip


def profile_curves(m: Material) -> "Figure":
    found = m.fit
    noise = noise_of(found)
    names = list(found.law.names)
    if found.exponents and "a" not in names:
        names.append("a")
    shown = [profile(found, quantity(found.law, name), LEVELS, noise) for name in names]
    center = dict(found.params)
    center |= {k: v for k, v in (found.exponents or {}).items() if k not in center}
    return uncertainty.profile_curves(shown, center)


def rollout(m: Material) -> "Figure":
    e = m.evidence
    found = m.fit
    by = budgets(e.runs) if {"n", "d"} <= e.runs.x.keys() else e.runs.x[e.law.inputs[0]]
    levels = np.unique(by)
    # Where runs come in groups of one budget, thresholds between the groups; else quantiles.
    thresholds = np.unique(np.quantile(by, [0.5, 0.6, 0.7, 0.8, 0.9]))
    if e.frontier is not None and levels.size >= 4:
        middle = [g.flops for g in e.frontier.groups]
        thresholds = np.sqrt(np.array(middle[:-1]) * np.array(middle[1:]))
    # Below a fifth of the table a fit says more about luck than about the law.
    least = max(len(e.law.names) + 1, by.size // 5)
    usable = [float(t) for t in thresholds if least <= np.sum(by < t) < by.size]
    if len(usable) > 6:
        usable = [usable[i] for i in np.linspace(0, len(usable) - 1, 6).astype(int)]
    if not usable:
        raise BadInput(f"no threshold leaves the {least} runs that {e.law.name} needs below it")
    held = roll_out(e.law, e.runs.x, e.runs.y, by, usable, objective=found.problem.objective)
    return checks.rollout(usable, held)


def one_input(m: Material) -> "Figure":
    import pandas as pd

    e = m.evidence
    if len(e.law.inputs) != 1:
        raise BadInput(f"law {e.law.name} has {len(e.law.inputs)} inputs, not one")
    role = e.law.inputs[0]
    column, target = e.runs.columns[role], e.runs.columns[e.law.target]
    unused = np.setdiff1d(np.arange(1, len(e.frame) + 1), e.used) - 1
    rest = e.frame.iloc[unused]
    held = tuple(
        pd.to_numeric(rest[name], errors="coerce").to_numpy(np.float64) for name in (column, target)
    )
    usable = np.isfinite(held[0]) & np.isfinite(held[1])
    return broken.one_input(
        e.law, e.params, e.runs.x[role], e.runs.y, held_out=(held[0][usable], held[1][usable]),
        samples=e.samples, label=_column(e, role),
    )  # fmt: skip


def _column(e: Evidence, role: str) -> str:
    """The column of a role as words; a dollar would start a formula."""
    return e.runs.columns.get(role, role).replace("_", " ").replace("$", r"\$")


def emergence(m: Material) -> "Figure":
    e = m.evidence
    law = m.surface()
    amount = budgets(e.runs)
    reach = np.geomspace(amount.min(), amount.max() * 100, 80)
    floor = float(law.floor()[0])
    path = TableLedger(e.runs).best(law, reach)
    return broken.emergence(amount, e.runs.y, floor, line=(reach, path.loss[:, 0]))


def double_descent() -> "Figure":
    """Double descent and the broken law fitted to it, on generated data that says so."""
    x, y = broken.double_descent_example()
    law = broken.bnsl(2)
    found = fit(law, {"x": x}, y, objective="squared_log")
    return broken.one_input(
        law, found.params, x, y, label="parameters N",
        title="Double descent (generated data) and a broken law's fit",
    )  # fmt: skip


# From constants alone.
SOURCE: dict[str, Callable[[], "Figure"]] = {
    "figure_2_3_three_phases": source.three_phase,
    "figure_2_4_kaplan": source.kaplan,
    "double_descent": double_descent,
}
# From a law and its runs.
FITTED: dict[str, Callable[[Material], "Figure"]] = {
    "isoflop_curves": isoflop_curves,
    "isoflop_minima": minima_powers,
    "surface": surface_frontier,
    "frontier": frontier_bands,
    "learning_curves": learning_curves,
    "predicted_measured": predicted_measured,
    "residuals": residuals,
    "bootstrap_cloud": bootstrap_cloud,
    "profile_curves": profile_curves,
    "rollout": rollout,
    "one_input": one_input,
    "emergence": emergence,
}


def draw(
    wanted: Mapping[str, Callable[..., "Figure"]], *material: Material
) -> "tuple[dict[str, Figure], dict[str, str]]":
    """The figures of SOURCE, or of FITTED with a Material: drawn, and name -> why not."""
    drawn, undrawn = {}, {}
    for name, make in wanted.items():
        try:
            drawn[name] = make(*material)
        except BadInput as e:
            undrawn[name] = str(e)
    return drawn, undrawn
