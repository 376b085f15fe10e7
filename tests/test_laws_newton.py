"""The batched minimiser: many problems at once, bounds, flat directions, honest convergence."""

import numpy as np
import pytest

from lm.laws.newton import Point, minimise, solve


class Quartic:
    """sum gap^4 + bend gap^2 / 2 about a centre for each problem; not convex with bend < 0."""

    def __init__(self, centers, bend=2.0):
        self.centers, self.bend, self.calls = centers, bend, 0

    def __call__(self, theta, rows):
        self.calls += len(theta)
        gap = theta - self.centers[rows]
        f = np.sum(gap**4 + 0.5 * self.bend * gap**2, axis=1) + 1.0
        g = 4 * gap**3 + self.bend * gap
        S, P = theta.shape
        H, M = np.zeros((S, P, P)), np.zeros((S, P, P))
        index = np.arange(P)
        H[:, index, index] = 12 * gap**2 + self.bend
        M[:, index, index] = 12 * gap**2 + abs(self.bend)
        terms = np.abs(4 * gap**3) + np.abs(self.bend * gap) + 1e-12
        return Point(f, g, terms, 1e-18 * terms, H, M)


def test_solves_every_system_and_says_which_are_positive():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 4, 4))
    A = A @ A.transpose(0, 2, 1) + 0.1 * np.eye(4)
    A[7] -= 50 * np.eye(4)
    b = rng.normal(size=(50, 4))
    x, positive = solve(A, b, np.full((50, 4), 1e-12))
    assert not positive[7] and positive.sum() == 49
    expected = np.linalg.solve(A[positive], b[positive][:, :, None])[:, :, 0]
    np.testing.assert_allclose(x[positive], expected, rtol=1e-8)


def test_every_problem_reaches_its_own_minimum():
    centers = np.random.default_rng(0).normal(size=(40, 3))
    found = minimise(Quartic(centers), np.full((40, 3), 5.0), -np.inf, np.inf)
    assert found.converged.all()
    np.testing.assert_allclose(found.theta, centers, atol=1e-10)


def test_leaves_a_saddle():
    centers = np.zeros((1, 2))
    found = minimise(Quartic(centers, bend=-1.0), np.array([[1e-3, 2.0]]), -np.inf, np.inf)
    assert found.converged[0]
    np.testing.assert_allclose(np.abs(found.theta), np.sqrt(1 / 4), atol=1e-8)


def test_stops_on_bounds_of_each_problem():
    centers = np.array([[2.0, 0.0], [-2.0, 0.0]])
    lower = np.array([[0.0, -1.0], [-1.0, 0.5]])
    found = minimise(Quartic(centers), np.full((2, 2), 0.7), lower, np.full((2, 2), 1.0))
    assert found.converged.all()
    np.testing.assert_allclose(found.theta, [[1.0, 0.0], [-1.0, 0.5]], atol=1e-10)


def test_an_unmoved_start_is_not_converged():
    def stuck(theta, rows):
        point = Quartic(np.zeros((1, 1)))(theta, rows)
        if theta[0, 0] != 3.0:
            point.f[:] = np.inf
        return point

    found = minimise(stuck, np.array([[3.0]]), -np.inf, np.inf)
    assert found.theta[0, 0] == 3.0
    assert not found.converged[0]


def test_a_start_without_a_value_is_not_converged_and_stops_nothing():
    class Holes(Quartic):
        def __call__(self, theta, rows):
            point = super().__call__(theta, rows)
            point.f[theta[:, 0] > 4] = np.inf
            return point

    found = minimise(Holes(np.zeros((2, 1))), np.array([[5.0], [3.0]]), -np.inf, np.inf)
    assert list(found.converged) == [False, True]
    assert found.theta[1, 0] == pytest.approx(0.0, abs=1e-10)
