"""Predicted intervals against intervals that simulated runs really give."""

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws.design_runs import (
    Design,
    isoflop_design,
    log_optimal_size,
    runs_like_the_fitted,
    runs_needed,
    standard_error,
)

LAW = {"E": 1.82, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
DESIGN = isoflop_design("chinchilla", LAW, [1e18, 1e19, 1e20, 1e21])
QUANTITY = log_optimal_size("chinchilla", 1e22)


def loss(p, design):
    return p["E"] + p["A"] * design.n ** -p["alpha"] + p["B"] * design.d ** -p["beta"]


def fitted(design, log_loss):
    """Least squares on log loss, in log A and log B so that steps are well scaled."""
    from scipy.optimize import least_squares

    def unpack(t):
        return {"E": t[0], "A": np.exp(t[1]), "B": np.exp(t[2]), "alpha": t[3], "beta": t[4]}

    start = [LAW["E"], np.log(LAW["A"]), np.log(LAW["B"]), LAW["alpha"], LAW["beta"]]
    t = least_squares(lambda t: np.log(loss(unpack(t), design)) - log_loss, start, method="lm").x
    return unpack(t)


def test_the_design_is_a_grid_on_its_budgets_around_the_optimum():
    assert len(DESIGN.n) == 28
    np.testing.assert_allclose(6 * DESIGN.n * DESIGN.d, np.repeat([1e18, 1e19, 1e20, 1e21], 7))
    np.testing.assert_allclose(DESIGN.n[6] / DESIGN.n[0], 16)


def test_standard_error_is_what_simulated_fits_scatter_by():
    noise, rng = 1e-3, np.random.default_rng(0)
    clean = np.log(loss(LAW, DESIGN))
    found = [
        float(QUANTITY(fitted(DESIGN, clean + noise * rng.normal(size=28)))[0]) for _ in range(100)
    ]
    predicted = standard_error("chinchilla", LAW, DESIGN, QUANTITY, noise)
    assert np.std(found) == pytest.approx(predicted, rel=0.21)  # three standard errors of 100


def test_more_runs_narrow_it_as_a_square_root():
    error = standard_error("chinchilla", LAW, DESIGN, QUANTITY, 0.01)
    twice = Design(np.tile(DESIGN.n, 4), np.tile(DESIGN.d, 4))
    assert standard_error("chinchilla", LAW, twice, QUANTITY, 0.01) == pytest.approx(error / 2)
    wide = runs_needed("chinchilla", LAW, DESIGN, QUANTITY, 0.01, 0.1)
    narrow = runs_needed("chinchilla", LAW, DESIGN, QUANTITY, 0.01, 0.02)
    assert narrow / wide == pytest.approx((np.log(1.1) / np.log(1.02)) ** 2, rel=0.02)
    k = narrow / 28
    half = 1.2815515655446004 * error / np.sqrt(k)
    assert half == pytest.approx(np.log(1.02), rel=0.01)


def test_scaling_the_interval_of_a_fitted_table():
    assert runs_like_the_fitted([1 / 1.21, 1.21], 50, 0.1) == 200
    assert runs_like_the_fitted([1 / 1.1, 1.1], 50, 0.1) in (50, 51)


def test_a_design_that_identifies_nothing_is_refused():
    one_size = Design(np.full(20, 1e9), np.geomspace(1e9, 1e11, 20))
    few = Design(DESIGN.n[:4], DESIGN.d[:4])
    for design in (one_size, few):
        assert standard_error("chinchilla", LAW, design, QUANTITY, 0.01) == np.inf
        with pytest.raises(BadInput, match="never pin the answer down"):
            runs_needed("chinchilla", LAW, design, QUANTITY, 0.01, 0.1)
