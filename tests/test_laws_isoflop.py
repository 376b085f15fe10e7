"""Approach 2: minima of budgets, what is skipped and why, the method's bias."""

import numpy as np
import pandas as pd
import pytest

from lm.errors import BadInput
from lm.laws.evidence import gather
from lm.laws.forms import LAWS
from lm.laws.isoflop import group_members, isoflop, surface_bias
from lm.laws.request import Request, fit_table
from lm.laws.runs import read_runs
from tests.published_tables import TRUE, isoflops, noisy, path_of

CHINCHILLA = LAWS["chinchilla"]
SYMMETRIC = TRUE | {"alpha": 0.31, "beta": 0.31}


def table(x, y, group=True):
    frame = pd.DataFrame({"n_params": x["n"], "n_tokens": x["d"], "flops": x["flops"], "loss": y})
    if group:
        frame["group"] = [f"{c:.3g}" for c in x["flops"]]
    return read_runs(frame, CHINCHILLA)


def optimum(params, flops):
    a, b = params["beta"], params["alpha"]
    g = (params["alpha"] * params["A"] / (params["beta"] * params["B"])) ** (1 / (a + b))
    return g * (flops / 6) ** (a / (a + b))


@pytest.mark.parametrize("curve", ["parabola", "akima"])
def test_exact_minima_and_exponents(curve):
    """Grids centred on the optimum of a surface of equal exponents: the method's best case."""
    x = isoflops(5, 15, width=3.0)
    shift = optimum(SYMMETRIC, x["flops"]) / np.sqrt(x["flops"] / 120)
    x = {"n": x["n"] * shift, "d": x["d"] / shift, "flops": x["flops"]}
    found = isoflop(table(x, CHINCHILLA.predict(SYMMETRIC, x)), curve)
    assert found.params["a"] == pytest.approx(0.5, abs=2e-4)
    assert found.params["a"] + found.params["b"] == pytest.approx(1, abs=1e-9)
    for group in found.groups:
        assert group.n == pytest.approx(optimum(SYMMETRIC, group.flops), rel=0.01)
        assert 6 * group.n * group.d == pytest.approx(group.flops, rel=0.01)
    c = np.array([1e22, 1e23])
    np.testing.assert_allclose(
        found.params["N_0"] * c ** found.params["a"], optimum(SYMMETRIC, c), rtol=0.02
    )


def test_bias_of_wide_grids_is_measured_on_the_surface_itself():
    """Fault: an off-centre or wide grid biases the optimum silently."""
    x = isoflops(5, 15, width=10.0)
    runs = table(x, CHINCHILLA.predict(TRUE, x))
    true = CHINCHILLA.exponents(TRUE)["a"]
    found = isoflop(runs)
    bias = surface_bias(found, runs, lambda z: CHINCHILLA.predict(TRUE, z), true)
    assert abs(bias) > 1e-3
    assert found.params["a"] - bias == pytest.approx(true, abs=1e-12)
    noisy_runs = table(x, noisy(x, 0.003))
    again = isoflop(noisy_runs)
    corrected = again.params["a"] - surface_bias(
        again, noisy_runs, lambda z: CHINCHILLA.predict(TRUE, z), true
    )
    assert abs(corrected - true) < 0.02


def test_budgets_without_an_interior_minimum_are_skipped_with_a_reason():
    x = isoflops(4, 9, width=8.0)
    budgets = np.unique(x["flops"])
    best = optimum(TRUE, x["flops"])
    keep = np.ones(36, dtype=bool)
    keep &= ~((x["flops"] == budgets[0]) & (x["n"] > 0.7 * best))  # only too small ones
    keep &= ~((x["flops"] == budgets[1]) & (x["n"] < 1.5 * best))  # only too large ones
    few = np.flatnonzero(x["flops"] == budgets[2])
    x = {role: v[keep] for role, v in x.items()}
    assert few.size == 9
    runs = table(x, CHINCHILLA.predict(TRUE, x))
    found = isoflop(runs)
    reasons = [g.skipped for g in found.groups]
    assert "above the largest" in reasons[0] and "below the smallest" in reasons[1]
    assert reasons[2] is reasons[3] is None
    assert sum("skipped" in w for w in found.warnings) == 2
    two = runs.take((runs.x["flops"] < budgets[2] * 0.9), "test")
    with pytest.raises(BadInput, match="fewer than two budgets"):
        isoflop(two)


def test_a_budget_of_two_sizes_or_a_hill_is_skipped():
    x = isoflops(4, 6)
    y = CHINCHILLA.predict(TRUE, x)
    first = np.flatnonzero(x["flops"] == x["flops"].min())
    y[first] = 10 - y[first]
    keep = np.ones(24, dtype=bool)
    keep[np.flatnonzero(np.isclose(x["flops"], np.unique(x["flops"])[1]))[2:]] = False
    runs = table({r: v[keep] for r, v in x.items()}, y[keep])
    reasons = [g.skipped for g in isoflop(runs).groups]
    assert reasons[0] == "the losses do not curve upwards"
    assert reasons[1] == "2 sizes, at least 3 are needed"


def test_budgets_are_found_without_a_group_column():
    x = isoflops(5, 15)
    jitter = np.exp(np.random.default_rng(0).normal(0, 0.03, 75))
    x = {"n": x["n"], "d": x["d"] * jitter, "flops": x["flops"] * jitter}
    runs = table(x, CHINCHILLA.predict(TRUE, x), group=False)
    groups = group_members(runs)
    assert [members.size for _, members in groups] == [15] * 5
    # Losses at slightly different budgets are brought to one by the parabola's slope in FLOPs.
    exact = isoflops(5, 15)
    without = isoflop(table(exact, CHINCHILLA.predict(TRUE, exact)))
    assert isoflop(runs).params["a"] == pytest.approx(without.params["a"], abs=2e-3)


def test_resampled_frontiers_spread_around_the_fit():
    x = isoflops(5, 15)
    found = isoflop(table(x, noisy(x, 0.005)), bootstrap=100)
    low, high = np.percentile(found.samples["a"], [1, 99])
    assert low < found.params["a"] < high < low + 0.2
    assert found.samples["a"].size == 100


def test_flops_that_are_not_proportional_to_nd_are_said():
    x = isoflops(5, 15)
    x["flops"] = x["flops"] ** 1.1
    (warning,) = isoflop(table(x, CHINCHILLA.predict(TRUE, x))).warnings
    assert "a + b" in warning


def test_published_table():
    runs = read_runs(
        path_of("chinchilla_epoch.csv"), CHINCHILLA, where="excluded_in_replication == 0"
    )
    found = isoflop(runs)
    assert found.params["a"] == pytest.approx(0.49, abs=0.01)
    assert found.params["a"] + found.params["b"] == pytest.approx(1, abs=1e-9)


def test_resampled_tables_without_a_frontier_are_said():
    """Two budgets of three sizes: a draw that repeats a size leaves its budget without a curve."""
    x = isoflops(2, 3)
    found = isoflop(table(x, noisy(x, 0.003)), bootstrap=100)
    lost = 100 - found.samples["a"].size
    assert lost > 2
    assert any(f"{lost} of 100 resampled tables had no minimum" in w for w in found.warnings)
    x = isoflops(5, 15)
    assert not any(
        "resampled" in w for w in isoflop(table(x, noisy(x, 0.003)), "parabola", 30).warnings
    )


def test_the_minima_of_a_law_are_found_again_by_its_own_curve():
    x = isoflops(5, 15)
    frame = pd.DataFrame(
        {"n_params": x["n"], "n_tokens": x["d"], "flops": x["flops"], "loss": noisy(x, 1e-4)}
    )
    for curve in ("parabola", "akima"):
        content, _ = fit_table(Request(runs=frame, law="isoflop", curve=curve, bootstrap=0))
        again = gather(content, frame).frontier
        assert again.params == pytest.approx(content["params"], rel=1e-12), curve
