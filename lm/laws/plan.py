"""The answer to "how big a model, how many tokens, what loss, how sure": a plan as plain values.

Three questions: a budget of FLOPs, a loss to reach, or a given N and D. Every quantity is
{"value", "interval_80", "interval_95"}; intervals are percentiles over the bootstrap samples of
the law's parameters, None where there are none or too many samples have no answer.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lm.errors import BadInput
from lm.laws.allocate import SIX_ND, Ledger, Optimum, at, cheapest, frontier, off_optimum, optimum
from lm.laws.forms import LAWS
from lm.laws.law_file import KnownLaw
from lm.laws.shape import Family
from lm.laws.surface import DECAY, Surface, surface

T = TypeVar("T")
MOST_FLOPS, MOST = 1e40, 1e25  # what a question may ask for; beyond, the searches find nothing
FACTORS = (0.25, 0.5, 2.0, 4.0)  # times N*, for the cost of being off the optimum


class Question(NamedTuple):
    """Exactly one of flops, loss, or n with d; served tokens and unique tokens besides."""

    flops: float | None = None
    loss: float | None = None
    n: float | None = None
    d: float | None = None
    served: float = 0.0
    unique: float | None = None

    @property
    def given(self) -> list[str]:
        """What of a plan follows from the question alone."""
        if self.n is not None:
            return ["n", "d", "tokens_per_param", "flops"]
        return ["flops"] if self.flops is not None else ["loss"]

    def check(self) -> None:
        """Raises BadInput for two questions at once, none, half a point or a bad number."""
        for flag, value in (("flops", self.flops), ("loss", self.loss), ("n", self.n),
                            ("d", self.d), ("unique_tokens", self.unique)):  # fmt: skip
            if value is not None:
                check_amount(flag, value)
        if not 0 <= self.served <= MOST:
            raise BadInput(
                f"--served_tokens={self.served:g} must be 0 or more, and at most {MOST:g}"
            )
        point = self.n is not None or self.d is not None
        asked = [name for name, given in (("--flops", self.flops is not None),
                 ("--loss", self.loss is not None), ("--n with --d", point)) if given]  # fmt: skip
        if len(asked) > 1:
            raise BadInput(f"{' and '.join(asked)} are two questions: give one of them")
        if not asked:
            raise BadInput("nothing is asked: give one of --flops, --loss, or --n with --d")
        if point and (self.n is None or self.d is None):
            lacking = "--d" if self.d is None else "--n"
            raise BadInput(f"a point needs both --n and --d: add {lacking}")


def check_amount(flag: str, value: float) -> None:
    """Raises BadInput for a number that is not above 0, less than one of what is counted, or more
    than can be planned with."""
    if not value > 0 or value == math.inf:
        raise BadInput(f"--{flag}={value:g} is not a positive number: give one above 0")
    if value < 1 and flag != "loss":
        raise BadInput(f"--{flag}={value:g} is less than one: give 1 or more")
    most = MOST_FLOPS if flag in ("flops", "budgets") else MOST
    if value > most:
        raise BadInput(f"--{flag}={value:g} is more than can be planned for: give at most {most:g}")


class _Cloud(NamedTuple):
    """The same law at its point estimate and at every bootstrap sample (None without)."""

    point: Surface
    samples: Surface | None

    def of(self, f: Callable[[Surface], T]) -> tuple[T, T | None]:
        """Returns f of both surfaces: shapes (1, ...) and (samples, ...)."""
        return f(self.point), None if self.samples is None else f(self.samples)


def make_plan(
    known: KnownLaw, q: Question, family: Family, convention: str, command: str = ""
) -> dict[str, Any]:
    """Returns the content of plan.json.

    convention "6nd" counts 6 N D to train and 2 N a served token; "exact" counts the family's
    shapes. With served tokens, flops is the budget of both together. Raises BadInput where the
    question is bad, the loss lies below the law's floor, or no interior optimum exists.
    """
    q.check()
    family = Family(family.base, family.length, known.n_counts)  # N must mean what the law's does
    ledger: Ledger = family if convention == "exact" else SIX_ND
    cloud = _Cloud(
        surface(known.law, known.params, q.unique),
        None if known.samples is None else surface(known.law, known.samples, q.unique),
    )
    warnings = [*_scope(known, q), *known.warnings]
    _reachable(known, q, cloud.point)
    point, spread = cloud.of(lambda s: _answer(s, q, ledger))
    if not np.isfinite(point.n[0] * point.d[0]):
        raise BadInput(_no_optimum(known, q, ledger))

    def quantity(f, name: str = "") -> dict[str, Any]:
        return banded(f(point), None if spread is None else f(spread), name, warnings)

    plan: dict[str, Any] = {
        "law": known.name if known.path is None else known.law,
        "form": known.law,
        "method": known.method,
        "constants": known.params,
        "source": known.source,
        "n_counts": known.n_counts,
        "convention": convention,
        "flops": quantity(lambda o: _asked(q.flops, o.flops), "flops"),
        "n": quantity(lambda o: o.n, "n"),
        "d": quantity(lambda o: o.d, "d"),
        "tokens_per_param": quantity(lambda o: o.d / o.n),
        "loss": quantity(lambda o: _asked(q.loss, o.loss), "loss"),
        "given": q.given,
        "exponents": _exponents(known),
    }  # fmt: skip
    if q.served:
        plan["served_tokens"] = q.served
        plan["flops_training"] = quantity(lambda o: o.flops_training)
        plan["flops_serving"] = quantity(lambda o: o.flops_serving)
        plan["if_trained_optimally"] = _lifetime(cloud.point, point, ledger, q.served)
    if q.unique is not None:
        plan["unique_tokens"] = q.unique
        plan["epochs"] = quantity(lambda o: o.d / q.unique)
        plan["loss_floor"] = cloud.point.floor()[0].item()
    if q.flops is not None:
        plan["doublings"] = _doublings(cloud, q, ledger)
    if q.n is None:
        plan["off_optimum"] = _off(cloud.point, point, ledger, q.served)
    else:
        plan["compute_optimal"] = _instead(cloud, q, ledger, warnings)
    plan["shape"] = _shape(cloud, point, spread, q, family, ledger, warnings)
    warnings += beyond_the_table(known, plan["flops"]["value"])
    return plan | {"warnings": list(dict.fromkeys(warnings)), "command": command}


def _answer(s: Surface, q: Question, ledger: Ledger) -> Optimum:
    if q.flops is not None:
        return optimum(s, q.flops, ledger, q.served)
    if q.loss is not None:
        return cheapest(s, q.loss, ledger, q.served)
    return at(s, q.n, q.d, ledger, q.served)


def beyond_the_table(known: KnownLaw, flops: float) -> list[str]:
    """Returns a warning where FLOPs exceed those of every fitted run."""
    if known.largest_flops is None or flops <= known.largest_flops:
        return []
    ratio = flops / known.largest_flops
    return [f"an extrapolation: {ratio:.3g} times the FLOPs of the largest fitted run"]


def _asked(given: float | None, found: np.ndarray) -> np.ndarray:
    """What was asked is known to the last digit; the search returns it to within rounding."""
    return found if given is None else np.where(np.isfinite(found), given, found)


def banded(
    value: np.ndarray, samples: np.ndarray | None, name: str, warnings: list[str]
) -> dict[str, Any]:
    """Returns {"value", "interval_80", "interval_95"} from a point (1,) and samples (samples,).

    A sample without an answer cannot be placed, so an interval is None when their share exceeds
    what it leaves out at one end; with a name, a warning says so.
    """
    bands: dict[str, Any] = {"value": float(value[0]), "interval_80": None, "interval_95": None}
    if samples is None:
        return bands
    usable = samples[np.isfinite(samples)]
    lost = 1 - len(usable) / len(samples)
    if lost > 0 and name:
        warnings.append(f"{lost:.1%} of the bootstrap samples give no {name}")
    for level, tail in (("interval_80", 0.1), ("interval_95", 0.025)):
        if lost <= tail and len(usable) >= 20:
            bands[level] = [float(x) for x in np.quantile(usable, [tail, 1 - tail])]
    return bands


def _scope(known: KnownLaw, q: Question) -> list[str]:
    said = []
    if known.law == "data_constrained" and q.unique is None:
        said.append("no --unique_tokens given: the law is used as if data never repeated")
    if known.law != "data_constrained" and q.unique is not None:
        said.append(
            f"{known.name} knows nothing of repeated data: the decay constants "
            f"{' and '.join(DECAY)} are those of data_constrained_2023"
        )
    return said


def _reachable(known: KnownLaw, q: Question, s: Surface) -> None:
    floor = s.floor()[0]
    if q.loss is not None and not q.loss > floor:
        limit = "" if q.unique is None else f" with {q.unique:g} unique tokens"
        raise BadInput(
            f"--loss={q.loss:g} is not above {floor:.6g}, the lowest loss that {known.name} allows"
            f"{limit}: ask for a higher one"
        )


def _no_optimum(known: KnownLaw, q: Question, ledger: Ledger) -> str:
    if q.n is not None:
        return f"--n={q.n:g} is below the smallest shape that can be counted: give a larger one"
    asked = f"--flops={q.flops:g}" if q.flops is not None else f"--loss={q.loss:g}"
    served = f" and --served_tokens={q.served:g}" if q.served else ""
    n = float(ledger.counts(ledger.bounds[0])[0])
    return (
        f"{known.name} has no best model of {n:.3g} parameters or more for {asked}{served}: "
        "give a larger budget or a lower loss"
    )


def _exponents(known: KnownLaw) -> dict[str, Any] | None:
    exponents = LAWS[known.law].exponents
    value = exponents(known.params)
    if value is None or not np.isfinite(list(value.values())).all():
        return None
    spread = None if known.samples is None else exponents(known.samples)
    return {
        k: banded(np.atleast_1d(value[k]), None if spread is None else np.asarray(spread[k]), "",
                  [])
        for k in ("a", "b")
    }  # fmt: skip


def _doublings(cloud: _Cloud, q: Question, ledger: Ledger) -> list[dict[str, Any]]:
    """N*, D* and the loss of the budget doubled once to four times."""
    assert q.flops is not None
    budgets = q.flops * 2.0 ** np.arange(1, 5)
    path, paths = cloud.of(lambda s: frontier(s, budgets, ledger, q.served))
    rows = []
    for i, flops in enumerate(budgets):
        fields = {k: banded(getattr(path, k)[i], None if paths is None else getattr(paths, k)[i],
                            "", []) for k in ("n", "d", "loss")}  # fmt: skip
        rows.append({"flops": float(flops)} | fields)
    return rows


def _lifetime(s: Surface, best: Optimum, ledger: Ledger, served: float) -> dict[str, float]:
    """The model that would reach the same loss for the least training alone, and its life cost."""
    plain = cheapest(s, best.loss, ledger)
    life = at(s, plain.n, plain.d, ledger, served)
    return {
        "n": float(life.n[0]),
        "d": float(life.d[0]),
        "flops": float(life.flops[0]),
        "flops_ratio": float(life.flops[0] / best.flops[0]),
    }


def _off(s: Surface, best: Optimum, ledger: Ledger, served: float) -> list[dict[str, Any]]:
    off = off_optimum(s, best, np.array(FACTORS), ledger, served)
    rows = []
    for i, factor in enumerate(FACTORS):
        row = {k: float(v[0, i]) for k, v in off.items()}
        finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
        rows.append({"n_factor": factor, **finite})
    return rows


def _instead(cloud: _Cloud, q: Question, ledger: Ledger, warnings: list[str]) -> dict[str, Any]:
    """What the FLOPs of a given point would have bought, and what its loss would have cost."""

    def best(s: Surface) -> Optimum:
        return optimum(s, float(at(s, q.n, q.d, ledger, q.served).flops[0]), ledger, q.served)

    def saved(s: Surface) -> np.ndarray:
        own = at(s, q.n, q.d, ledger, q.served)
        return cheapest(s, own.loss, ledger, q.served).flops / own.flops

    point, spread = cloud.of(best)
    share, shares = cloud.of(saved)
    fields = {k: banded(getattr(point, k), None if spread is None else getattr(spread, k), "", [])
              for k in ("n", "d", "loss")}  # fmt: skip
    if not all(math.isfinite(f["value"]) for f in fields.values()):
        warnings.append("the law has no optimum at this point's FLOPs")
        return {}
    return fields | {"flops_ratio_for_same_loss": banded(share, shares, "", [])}


def _shape(
    cloud: _Cloud, point: Optimum, spread: Optimum | None, q: Question, family: Family,
    ledger: Ledger, warnings: list[str],
) -> dict[str, Any] | None:  # fmt: skip
    """The nearest shape that can be built, with its own counts, tokens and loss."""
    try:
        shape = family.nearest(float(point.n[0]))
    except BadInput as e:
        warnings.append(f"no shape: {e}")
        return None
    n = float(shape[family.n_counts])
    exact = ledger.convention == "exact"
    train = shape["flops_per_token"] if exact else 6 * n
    serve = train / 3
    if q.flops is not None:
        d = (q.flops - serve * q.served) / train
    elif q.loss is not None:
        d = float(cloud.point.tokens(np.array([[n]]), q.loss)[0, 0])
    else:
        d = float(point.d[0])
    if not 0 < d < math.inf:
        warnings.append("the nearest shape cannot meet the request: it is too small or too large")
        return None
    loss, losses = cloud.of(lambda s: s.loss(np.full((s.samples, 1), n), d)[:, 0])
    wanted = float(point.n[0])
    if abs(n / wanted - 1) > 0.05:
        warnings.append(
            f"the nearest shape has {n / wanted:.3g} times the wanted parameters: a family with a "
            "smaller vocabulary or head comes closer"
        )
    return shape | {
        "n_tokens": round(d),
        "flops": shape["flops_per_token"] * d,
        "flops_6nd": 6 * shape["n_params"] * d,
        "loss": banded(loss, losses, "", []),
    }
