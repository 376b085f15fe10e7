"""One fit from a table to the content of law.json: what experiments.fit and a sweep call."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.bootstrap import Progress, Samples, bootstrap, failure_warning
from lm.laws.checks import add_profiles, comparison, holdout, left_out, log_errors, test_of
from lm.laws.envelope import envelope
from lm.laws.fit import Fit, fit
from lm.laws.forms import LAWS
from lm.laws.forms.bnsl import bnsl
from lm.laws.isoflop import isoflop, surface_bias
from lm.laws.law import Law
from lm.laws.published import published
from lm.laws.result import frontier_dict, frontier_samples, law_dict
from lm.laws.runs import Runs, read_runs

METHODS = ("parametric", "isoflop", "envelope")
OUTLIER = 6.0  # robust standard deviations from the fit
# Fields that not every method reads: any other would leave them out of account.
READ_BY = {
    **dict.fromkeys(
        ("strata", "fix", "tie", "bound", "weights", "drop_outliers", "above", "test", "leave_out",
         "compare"), ("parametric",),
    ),
    **dict.fromkeys(("objective", "delta", "tau"), ("parametric", "isoflop")),
    "cluster": ("parametric", "envelope"),
    "curve": ("isoflop",),
}  # fmt: skip
# The same of objectives.
SHAPED_BY = {"delta": ("huber", "asymmetric"), "tau": ("asymmetric",)}


@dataclass(frozen=True)
class Request:
    """What to fit; the fields are the flags of experiments.fit. runs: a path or a DataFrame."""

    runs: Any
    law: str = "chinchilla"
    method: str | None = None  # None: the one that the law names, else parametric
    objective: str = "huber"
    delta: float = 1e-3
    tau: float = 0.5
    where: str | None = None
    bootstrap: int = 1000
    cluster: str | None = None
    strata: str | None = None
    seed: int = 0
    fix: tuple[str, ...] = ()
    tie: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    breaks: int = 1
    curve: str = "parabola"
    weights: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    drop_outliers: bool = False
    profile: bool = True
    above: float | None = None
    test: str | None = None
    leave_out: str | None = None
    compare: tuple[str, ...] = ()


def fit_table(
    request: Request, progress: Progress | None = None
) -> tuple[dict[str, Any], Samples | None]:
    """The content of law.json (without "command") and the bootstrap samples.

    `progress` is told how many resampled tables are done.
    """
    law, method = check(request)
    runs = read_runs(request.runs, law, request.columns, request.where)
    for name in (request.cluster, request.strata, request.leave_out):
        if name is not None and method == "parametric":
            runs.column(name)  # a wrong name is told before the fit
    if method == "parametric":
        return parametric(request, law, runs, progress)
    return frontier(request, law, runs, method, progress)


def check(request: Request) -> tuple[Law, str]:
    """The law and the method that are asked for; BadInput for what can be refused before a table is
    read: unknown names, numbers out of range, settings that would be left out of account."""
    law, method = named(request.law, request.method, request.breaks)
    for name in ("bootstrap", "seed"):
        if getattr(request, name) < 0:
            raise BadInput(f"{name} is {getattr(request, name)}, but must be zero or more")
    for name in request.compare:
        named(name, "parametric")
    if request.test is not None:
        published(request.test)
    _refuse_unread(request, law, method)
    return law, method


def named(name: str, method: str | None, breaks: int = 1) -> tuple[Law, str]:
    """The law and method that a --law name means; BadInput with the nearest name otherwise."""
    if breaks < 0:
        raise BadInput(f"breaks is {breaks}, but must be zero or more")
    if name in ("isoflop", "envelope"):
        if method not in (None, name):
            raise BadInput(f"--law={name} and --method={method} are two methods: give one of them")
        return LAWS["chinchilla"], name
    if name not in LAWS:
        near = get_close_matches(name, [*LAWS, *METHODS], 1, 0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"there is no law {name!r}: {hint}Give one of {', '.join(LAWS)}")
    method = method or "parametric"
    if method != "parametric" and name != "chinchilla":
        raise BadInput(f"method {method} belongs to law chinchilla, not to {name}")
    return (bnsl(breaks) if name == "bnsl" else LAWS[name]), method


def _refuse_unread(request: Request, law: Law, method: str) -> None:
    """Raises BadInput for a setting that the method, law or objective leaves out of account."""
    settings = [f for f in fields(Request) if f.name not in ("runs", "columns")]
    given = [f.name for f in settings if getattr(request, f.name) != f.default]
    for name in given:
        readers = READ_BY.get(name, METHODS)
        if method not in readers:
            raise BadInput(
                f"method {method} does not read --{name}: leave it out, or give "
                f"--method={' or '.join(readers)}"
            )
        shaped = SHAPED_BY.get(name, (request.objective,))
        if request.objective not in shaped:
            raise BadInput(
                f"objective {request.objective} does not read --{name}: leave it out, or give "
                f"--objective={' or '.join(shaped)}"
            )
    if "breaks" in given and law.name != "bnsl":
        raise BadInput(f"law {law.name} does not read --breaks: leave it out, or give --law=bnsl")
    read = {*law.inputs, law.target, "n", "d", "flops"}
    if law.target == "accuracy":
        read.add("x")
    for role in request.columns:
        if role not in read:
            raise BadInput(
                f"law {law.name} does not read --{role}: leave it out (it reads "
                f"{', '.join((*law.inputs, law.target))})"
            )


def parametric(
    request: Request, law: Law, runs: Runs, progress: Progress | None = None
) -> tuple[dict[str, Any], Samples | None]:
    """The law's surface fitted to all rows, with the answer without outliers beside it."""
    settings: dict[str, Any] = {
        "objective": request.objective,
        "delta": request.delta,
        "tau": request.tau,
        "fixed": numbers(request.fix, "--fix"),
        "tied": pairs(request.tie, "--tie"),
        "bounds": ranges(request.bound),
    }

    def fitted(table: Runs) -> Fit:
        weights = None if request.weights is None else weight_column(table, request.weights)
        return fit(law, table.x, table.y, weights=weights, **settings)

    found = fitted(runs)
    outliers = flag_outliers(found, runs)
    more: dict[str, Any] = {"outliers": outliers}
    if outliers:
        flagged = np.isin(runs.rows, [item["row"] for item in outliers])
        without_runs = runs.take(~flagged, "outlier: far from the fit (--drop_outliers)")
        without = fitted(without_runs)
        other = without if not request.drop_outliers else found
        key = "with_outliers" if request.drop_outliers else "without_outliers"
        more[key] = {
            "params": other.params,
            "exponents": other.exponents,
            "objective_sum": other.sum,
            "n_runs": other.problem.y.size,
        }
        if request.drop_outliers:
            found, runs = without, without_runs
    samples = None
    if request.bootstrap and found.status != "no_minimum":
        labels = {
            key: None if name is None else runs.column(name)
            for key, name in (("cluster", request.cluster), ("strata", request.strata))
        }
        samples = bootstrap(found, request.bootstrap, request.seed, progress=progress, **labels)
    content = law_dict(found, runs, samples, "parametric", **more)
    if found.status != "no_minimum":
        if request.profile:
            add_profiles(content, found)
        if request.test is not None:
            content["published_test"] = test_of(found, request.test)
        if request.leave_out is not None:
            content["left_out"] = left_out(found, runs.column(request.leave_out))
    if law.target == "loss":
        content["rms_log_error"] = log_errors(found, runs, rest_of(request, law))
    if request.weights is not None:
        settings["weights"] = weight_column(runs, request.weights)
    if request.above is not None:
        content["validation"] = holdout(law, runs, request.above, **settings)
    if request.compare:
        laws = [law, *(named(name, "parametric")[0] for name in request.compare)]
        content["comparison"] = comparison(laws, runs, **settings)
    if outliers:
        content["warnings"].append(outlier_warning(outliers, request.drop_outliers))
    if samples is not None:
        content["warnings"] += failure_warning(samples.failed, request.bootstrap)
    return content, samples


def rest_of(request: Request, law: Law) -> Runs | None:
    """The rows that `where` left out, as far as they can be read."""
    if request.where is None:
        return None
    try:
        return read_runs(request.runs, law, request.columns, f"not ({request.where})")
    except BadInput:
        return None


def frontier(
    request: Request, law: Law, runs: Runs, method: str, progress: Progress | None = None
) -> tuple[dict[str, Any], Samples | None]:
    """Approach 1 or 2: N* = N_0 C^a and D* = D_0 C^b, the parametric answer and the bias beside."""
    if method == "isoflop":
        found = isoflop(runs, request.curve, request.bootstrap, request.seed, progress)
    else:
        found = envelope(
            runs, request.bootstrap, request.seed, request.cluster or "run_id", progress
        )
    content = frontier_dict(found, law, runs, method)
    if method == "isoflop":
        content["curve"] = request.curve
        try:
            beside = fit(
                law, runs.x, runs.y,
                objective=request.objective, delta=request.delta, tau=request.tau,
            )  # fmt: skip
        except BadInput as error:
            content["warnings"].append(f"no parametric answer beside it: {error}")
            return content, frontier_samples(found)
        exponents = beside.exponents
        if exponents is None:
            content["warnings"].append("no parametric answer beside it: both its exponents are 0")
            return content, frontier_samples(found)
        bias = surface_bias(found, runs, beside.predict, exponents["a"])
        content["parametric"] = {
            "params": beside.params,
            "exponents": exponents,
            "status": beside.status,
            "method_bias_a": bias,
        }
        content["warnings"].append(
            f"the parametric fit of the same runs gives a = {exponents['a']:.4f}; on that surface, "
            f"at these sizes, method isoflop would be off by {bias:+.4f} in a"
        )
    return content, frontier_samples(found)


def flag_outliers(found: Fit, runs: Runs) -> list[dict[str, Any]]:
    """Rows far from the fit: row, residual in the objective's link (observed higher), a reason."""
    residual = -found.residuals()
    free = found.theta.shape[1]
    if residual.size < 2 * free:
        return []  # too few rows to say which of them are far off
    # A law bends towards as many rows as it has parameters: they do not count.
    size = np.sort(np.abs(residual - np.median(residual)))[free:]
    spread_ = 1.4826 * np.median(size)
    if not np.isfinite(spread_) or spread_ < 1e-12:
        return []
    flagged = []
    for k in np.flatnonzero(np.abs(residual) > OUTLIER * spread_):
        percent = 100 * (runs.y[k] / found.predict(runs.x)[k] - 1)
        flagged.append(
            {
                "row": int(runs.rows[k]),
                "residual": float(residual[k]),
                "reason": f"{found.law.target} is {abs(percent):.3g} % "
                f"{'above' if percent > 0 else 'below'} the fit, "
                f"{abs(residual[k]) / spread_:.1f} robust standard deviations",
            }
        )
    return flagged


def outlier_warning(outliers: list[dict[str, Any]], dropped: bool) -> str:
    """The sentence that names the flagged rows and where the other answer is."""
    rows = ", ".join(str(item["row"]) for item in outliers[:8])
    more = f" and {len(outliers) - 8} more" if len(outliers) > 8 else ""
    done = "left out: with_outliers" if dropped else "kept: without_outliers"
    noun = "outlier (row" if len(outliers) == 1 else "outliers (rows"
    return f"{len(outliers)} {noun} {rows}{more}) {done} has the other answer"


def weight_column(runs: Runs, name: str) -> np.ndarray:
    """Row weights from a column, as numbers."""
    column = runs.column(name)
    try:
        return np.asarray(column, dtype=np.float64)
    except ValueError:
        raise BadInput(
            f"column {name!r} (--weights) holds text: give a column of numbers"
        ) from None


def pairs(items: tuple[str, ...], flag: str) -> dict[str, str]:
    """{"E": "1.69"} of ("E=1.69",)."""
    made = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise BadInput(f"{flag}={item} is not NAME=VALUE: write {flag}=E=1.69")
        made[name.strip()] = value.strip()
    return made


def numbers(items: tuple[str, ...], flag: str) -> dict[str, float]:
    """{"E": 1.69} of ("E=1.69",)."""
    made = {}
    for name, value in pairs(items, flag).items():
        try:
            made[name] = float(value)
        except ValueError:
            raise BadInput(f"{flag}={name}={value} does not give a number") from None
    return made


def ranges(items: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """{"E": (0.0, 2.0)} of ("E=0:2",); an empty side is open."""
    made = {}
    for name, value in pairs(items, "--bound").items():
        low, colon, high = value.partition(":")
        try:
            made[name] = (float(low or "-inf"), float(high or "inf"))
        except ValueError:
            colon = ""
        if not colon:
            raise BadInput(f"--bound={name}={value} is not LOW:HIGH: write --bound=E=0:2")
    return made
