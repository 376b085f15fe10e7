"""Starts: linear parameters solved exactly, kept at or above their floors."""

import numpy as np
import pytest

from lm.laws.forms import LAWS
from lm.laws.objective import objective
from lm.laws.problem import Constraints, Problem
from lm.laws.starts import _least_squares, project, retraction, start_points
from tests.published_tables import TRUE, cloud, noisy

CHINCHILLA = LAWS["chinchilla"]


def problem_of(**constraints):
    x = cloud(60)
    y = noisy(x, 0.01)
    weights = np.linspace(0.5, 1.5, 60)
    return Problem(
        CHINCHILLA, x, y, objective(), Constraints.of(CHINCHILLA, **constraints), weights
    )


def test_least_squares_with_floors_is_nonnegative_least_squares():
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    columns = rng.normal(size=(40, 20, 3)) + 0.5
    target = np.broadcast_to(rng.normal(size=20), (40, 20))
    solved = _least_squares(columns, target, np.zeros(3))
    residual = np.linalg.norm(np.einsum("snk,sk->sn", columns, solved) - target, axis=1)
    best = np.array([nnls(columns[s], target[s])[1] for s in range(40)])
    assert np.all(solved >= 0) and np.any(solved == 0)
    # Dropping one column at a time is not always the best choice, but never far from it.
    assert np.mean(residual <= best * (1 + 1e-8)) > 0.8
    assert np.all(residual <= best * 1.1)


def test_projection_minimises_the_weighted_relative_error():
    problem = problem_of()
    start = {"alpha": np.array([0.3, 0.4]), "beta": np.array([0.25, 0.3])}
    solved = project(problem, start)

    def cost(p):
        p = {n: v[:, None] for n, v in p.items()}
        miss = CHINCHILLA.formula(p, problem.scaled_x) / problem.y - 1
        return np.sum(problem.weights * miss**2, axis=1)

    best = cost(solved)
    for name in CHINCHILLA.linear:
        for factor in (0.99, 1.01):
            assert np.all(cost(solved | {name: solved[name] * factor}) > best)


def test_starts_obey_constraints():
    fixed = problem_of(fixed={"E": 1.7})
    theta = start_points(fixed)
    assert theta.shape[1] == 4 and np.all(np.isfinite(theta))
    np.testing.assert_array_equal(fixed.coordinates.natural(theta)["E"], 1.7)
    bounded = problem_of(bounds={"alpha": (0.3, 0.4)})
    alpha = bounded.coordinates.natural(start_points(bounded))["alpha"]
    assert alpha.min() == 0.3 and alpha.max() == 0.4


def test_retraction_keeps_the_others_and_is_absent_where_it_cannot_be():
    problem = problem_of()
    retract = retraction(problem)
    theta = problem.coordinates.theta({n: np.array([v, 1.1 * v]) for n, v in TRUE.items()})
    moved = retract(theta)
    np.testing.assert_array_equal(moved[:, 3:], theta[:, 3:])
    np.testing.assert_allclose(retract(moved), moved, rtol=1e-9)
    assert retraction(problem_of(bounds={"E": (0.0, 2.0)})) is None
    assert retraction(problem_of(fixed={"A": 400.0})) is None  # only meant in the table's units


@pytest.mark.parametrize("name", LAWS)
def test_every_law_has_finite_starts(name):
    law = LAWS[name]
    x = {
        role: np.geomspace(1.5, 4.0, 30) if role == "loss" else cloud(30)["n"]
        for role in law.inputs
    }
    y = np.linspace(0.1, 0.9, 30) if law.target == "accuracy" else noisy(cloud(30))
    theta = start_points(Problem(law, x, y, objective(), Constraints.of(law)))
    assert theta.shape[0] >= 5 and np.all(np.isfinite(theta))
