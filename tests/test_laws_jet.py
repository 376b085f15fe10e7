"""Exact derivatives of every law against central differences, and of every operation."""

import numpy as np
import pytest

from lm.laws.forms import LAWS
from lm.laws.forms.bnsl import bnsl
from lm.laws.jet import Jet, variable
from lm.laws.monomial import MonomialSum
from lm.laws.objective import objective
from lm.laws.problem import Constraints, Problem

POINTS = {
    "power": {"a": 3.0, "b": -0.3},
    "power_floor": {"a": 3.0, "b": -0.3, "E": 1.5},
    "kaplan_n": {"N_c": 40.0, "alpha_N": 0.2},
    "kaplan_d": {"D_c": 40.0, "alpha_D": 0.2},
    "kaplan_nd": {"N_c": 30.0, "D_c": 50.0, "alpha_N": 0.2, "alpha_D": 0.3},
    "joint": {"a": 2.0, "b": -0.3, "c": 1.5, "d": -0.25, "E": 1.4},
    "chinchilla": {"E": 1.4, "A": 2.0, "B": 1.5, "alpha": 0.3, "beta": 0.25},
    "three_phase": {"E": 1.0, "L_0": 5.0, "x_c": 0.7, "alpha": 0.6},
    "bnsl": {"a": 0.5, "b": 2.0, "c0": 0.2, "c1": 0.6, "d1": 1.4, "f1": 0.4},
    "data_constrained": {
        "E": 1.2, "A": 2.0, "B": 1.5, "alpha": 0.3, "beta": 0.35, "R_D": 2.0, "R_N": 3.0
    },
    "overtraining": {"E": 1.3, "a": 0.8, "b": 1.1, "eta": 0.2},
    "accuracy_sigmoid": {"a": 0.6, "k": 2.0, "L_0": 1.5, "b": 0.2},
    "accuracy_exponential": {"epsilon": 0.7, "k": 1.2, "gamma": 0.8},
}  # fmt: skip


def inputs(law, rows=12):
    rng = np.random.default_rng(1)
    x = {role: np.exp(rng.normal(0, 1, rows)) for role in law.inputs}
    if "unique" in x:
        x["unique"] = x["d"] * rng.uniform(0.1, 1.5, rows)
    return x


def test_every_law_has_a_point():
    assert POINTS.keys() == LAWS.keys()


@pytest.mark.parametrize("name", POINTS)
def test_derivatives_of_laws(name):
    law, point = LAWS[name], POINTS[name]
    x = inputs(law)
    values = np.array([point[n] for n in law.names])
    jets = {n: variable(np.array([[v]]), k) for k, (n, v) in enumerate(point.items())}
    order = {n: k for k, n in enumerate(point)}
    jet = law.formula(jets, x)
    assert isinstance(jet, Jet)
    np.testing.assert_allclose(jet.v[0], law.predict(point, x), rtol=1e-13)
    step = 1e-5

    def shifted(moves):
        p = dict(point)
        for n, m in moves:
            p[n] += m * step * max(abs(point[n]), 0.1)
        return law.predict(p, x)

    for i, a in enumerate(law.names):
        h = step * max(abs(values[i]), 0.1)
        expected = (shifted([(a, 1)]) - shifted([(a, -1)])) / (2 * h)
        got = np.broadcast_to(jet.g.get(order[a], 0.0), (1, 12))[0]
        np.testing.assert_allclose(got, expected, rtol=2e-7, atol=2e-8)
        for b in law.names[i:]:
            k = step * max(abs(point[b]), 0.1)
            corners = [shifted([(a, s), (b, t)]) * s * t for s in (1, -1) for t in (1, -1)]
            key = tuple(sorted((order[a], order[b])))
            got = np.broadcast_to(jet.h.get(key, 0.0), (1, 12))[0]
            np.testing.assert_allclose(got, sum(corners) / (4 * h * k), rtol=2e-4, atol=2e-4)


def test_operations_between_jets():
    a, b = variable(np.array([[1.3]]), 0), variable(np.array([[0.7]]), 1)
    quotient = np.exp(a) / (b * b) - (2.0 - a) ** b + np.log1p(b) * np.expm1(-a)

    def plain(u, v):
        return np.exp(u) / v**2 - (2.0 - u) ** v + np.log1p(v) * np.expm1(-u)

    h = 1e-4
    np.testing.assert_allclose(quotient.v, plain(1.3, 0.7), rtol=1e-14)
    mixed = (
        plain(1.3 + h, 0.7 + h) - plain(1.3 + h, 0.7 - h)
        - plain(1.3 - h, 0.7 + h) + plain(1.3 - h, 0.7 - h)
    )  # fmt: skip
    np.testing.assert_allclose(quotient.h[0, 1], mixed / (4 * h * h), rtol=1e-5)
    np.testing.assert_allclose(
        quotient.g[1], (plain(1.3, 0.7 + h) - plain(1.3, 0.7 - h)) / (2 * h), rtol=1e-7
    )


def test_minimum_and_logaddexp_of_two_jets():
    a, b = variable(np.array([[1.0, 3.0]]), 0), variable(np.array([[2.0, 2.0]]), 1)
    low = np.minimum(a * a, b)
    np.testing.assert_array_equal(low.v, [[1.0, 2.0]])
    np.testing.assert_array_equal(low.g[0], [[2.0, 0.0]])
    np.testing.assert_array_equal(low.g[1], [[0.0, 1.0]])
    soft = np.logaddexp(a, b)
    np.testing.assert_allclose(soft.v, np.logaddexp([[1.0, 3.0]], 2.0))
    np.testing.assert_allclose(soft.g[0] + soft.g[1], 1.0)
    np.testing.assert_allclose(soft.h[0, 1], -soft.g[0] * soft.g[1], rtol=1e-12)


def test_a_law_may_only_use_known_functions():
    with pytest.raises(TypeError, match="sinh"):
        np.sinh(variable(np.ones((1, 1)), 0))


@pytest.mark.parametrize("name", ["power", "power_floor", "joint", "chinchilla"])
@pytest.mark.parametrize("goal", ["huber", "squared", "squared_log1p", "asymmetric"])
def test_sums_of_powers_equal_jets(name, goal):
    law = LAWS[name]
    x = inputs(law, 30)
    y = law.predict(POINTS[name], x) * np.exp(np.random.default_rng(0).normal(0, 0.01, 30))
    problem = Problem(law, x, y, objective(goal, tau=0.3), Constraints.of(law))
    assert isinstance(problem.sum, MonomialSum)
    theta = problem.coordinates.theta({n: np.array([v]) for n, v in POINTS[name].items()})
    theta = theta + np.array([[0.0], [0.01], [-0.02]])
    fast = problem(theta, np.arange(3))
    problem.sum = None
    slow = problem(theta, np.arange(3))
    for part in ("f", "g", "H", "M", "terms"):
        a, b = getattr(fast, part), getattr(slow, part)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11 * np.abs(b).max())


@pytest.mark.parametrize("goal", ["huber", "squared_log", "squared", "squared_log1p"])
def test_gradient_and_hessian_of_the_objective(goal):
    """Fit coordinates of a law with jets only: the objective against central differences."""
    law = bnsl(1)
    x = inputs(law, 20)
    y = law.predict(POINTS["bnsl"], x) * np.exp(np.random.default_rng(0).normal(0, 0.01, 20))
    problem = Problem(law, x, y, objective(goal, delta=0.02), Constraints.of(law))
    theta = problem.coordinates.theta({n: np.array([v]) for n, v in POINTS["bnsl"].items()})
    point = problem(theta, np.zeros(1, dtype=int))
    for k in range(6):
        h = 1e-6
        step = np.zeros((1, 6))
        step[0, k] = h
        up, down = (problem(theta + s, np.zeros(1, dtype=int)) for s in (step, -step))
        np.testing.assert_allclose(
            point.g[0, k], (up.f - down.f)[0] / (2 * h), rtol=1e-5, atol=1e-8
        )
        np.testing.assert_allclose(
            point.H[0, k], (up.g - down.g)[0] / (2 * h), rtol=1e-4, atol=1e-5 * point.H.max()
        )


def test_weights_multiply_the_objective():
    law = LAWS["chinchilla"]
    x = inputs(law, 30)
    y = law.predict(POINTS["chinchilla"], x) * 1.01
    once = Problem(law, x, y, objective(), Constraints.of(law))
    theta = once.coordinates.theta({n: np.array([v]) for n, v in POINTS["chinchilla"].items()})
    w = np.zeros((2, 30))
    w[0, :10], w[1] = 3.0, 1.0
    theta = np.repeat(theta, 2, axis=0)
    both = once.reweighted(w)(theta, np.arange(2))
    first = Problem(
        law, {r: v[:10] for r, v in x.items()}, y[:10], objective(), Constraints.of(law)
    )
    np.testing.assert_allclose(both.f[1], once(theta, np.arange(2)).f[0], rtol=1e-14)
    natural = first.coordinates.theta(once.coordinates.natural(theta))
    np.testing.assert_allclose(both.f[0], 3 * first(natural, np.arange(2)).f[0], rtol=1e-9)
