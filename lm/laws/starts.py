"""Where a fit begins: the law's starts with their linear parameters solved for. Imports NumPy."""

from collections.abc import Callable, Mapping

import numpy as np

from lm.laws.law import Law
from lm.laws.problem import Problem

Array = np.ndarray


def retraction(problem: Problem) -> Callable[[Array], Array] | None:
    """A function of theta (S, P) that solves for the linear parameters and keeps the others.

    None where the law has no linear parameters, or they are fixed or tied.
    """
    law, coordinates = problem.law, problem.coordinates
    constrained = {*coordinates.constraints.tied, *coordinates.constraints.tied.values()}
    constrained |= {*coordinates.constraints.bounds}
    if not law.linear or not coordinates.scaled or constrained & set(law.linear):
        return None
    kept = [n for n in law.names if n not in law.linear or n in coordinates.held]

    def retract(theta: Array) -> Array:
        params = coordinates.scaled_params(theta)
        start = {n: params[n] for n in kept}
        solved = project(problem, start)
        return coordinates.of_scaled(solved)

    return retract


def start_points(problem: Problem) -> Array:
    """theta (S, P) of the law's starts, linear parameters projected out, constraints applied."""
    law, x, y = problem.law, problem.scaled_x, problem.y
    start = law.starts(x, y)
    if law.linear:
        start = project(problem, start | _held(problem, start))
    theta = problem.coordinates.of_scaled(start)
    theta = np.where(np.isfinite(theta), theta, 0.0)
    theta = np.clip(theta, problem.lower, problem.upper)
    return np.unique(theta, axis=0)


def _held(problem: Problem, start: Mapping[str, Array]) -> dict[str, Array]:
    """Fixed values in the units of the starts, as far as they can be stated there."""
    coordinates = problem.coordinates
    held = coordinates.held if coordinates.scaled else {}
    count = len(next(iter(start.values())))
    return {name: np.full(count, value) for name, value in held.items()}


def project(problem: Problem, start: Mapping[str, Array]) -> dict[str, Array]:
    """The start completed by the linear parameters of least relative squares, kept positive."""
    with np.errstate(all="ignore"):  # starts that overflow are of no use, and refused later
        return _project(problem, start)


def _project(problem: Problem, start: Mapping[str, Array]) -> dict[str, Array]:
    law, x, y = problem.law, problem.scaled_x, problem.y
    lifted = {n: v[:, None] for n, v in start.items()}
    unknown = [n for n in law.linear if n not in start]
    if not unknown:
        return dict(start)
    zero = {n: np.zeros((1, 1)) for n in unknown}
    shape = (len(next(iter(start.values()))), y.size)
    base = np.broadcast_to(law.formula({**lifted, **zero}, x), shape)
    columns = np.stack(
        [
            np.broadcast_to(law.formula({**lifted, **zero, n: np.ones((1, 1))}, x), shape) - base
            for n in unknown
        ],
        axis=-1,
    )
    row = np.sqrt(problem.weights) / problem.unit
    columns = np.clip(np.nan_to_num(columns * row[:, None]), -1e100, 1e100)
    target = np.broadcast_to(row * (y - base), shape)
    solution = _least_squares(columns, target, _floors(law, unknown))
    return {**start, **{n: solution[:, k] for k, n in enumerate(unknown)}}


def _floors(law: Law, names: list[str]) -> Array:
    """Least share of the loss for each linear parameter; -inf where its sign is free."""
    floors = []
    for name in names:
        if name in law.log:
            floors.append(0.02)  # a logarithm cannot come back from zero
        else:
            floors.append(0.0 if law.bounds.get(name, (-np.inf,))[0] == 0.0 else -np.inf)
    return np.array(floors)


def _least_squares(columns: Array, target: Array, floors: Array) -> Array:
    """Coefficients (S, K) of columns (S, n, K) for target (S, n), each at or above its floor.

    A coefficient that falls below is put on its floor and the others are solved again.
    """
    S, n, K = columns.shape
    size = np.sqrt(np.sum(columns**2, axis=1)) + 1e-300
    unit = columns / size[:, None, :]
    across = unit.transpose(0, 2, 1)
    normal = across @ unit + 1e-13 * np.eye(K)
    right = (across @ target[:, :, None])[:, :, 0]
    floor = np.where(np.isfinite(floors), np.sqrt(n) * np.maximum(floors, 0.0), -np.inf)
    held = np.zeros((S, K), dtype=bool)
    for _ in range(K):
        free = ~held
        A = np.where(free[:, :, None] & free[:, None, :], normal, np.eye(K))
        fixed = np.where(held, np.where(np.isfinite(floor), floor, 0.0), 0.0)
        b = np.where(free, right - np.einsum("skl,sl->sk", normal, fixed), fixed)
        solution = np.linalg.solve(A, b[:, :, None])[:, :, 0]
        low = free & (solution < floor)
        if not low.any():
            break
        worst = np.argmin(np.where(low, solution - floor, np.inf), axis=1)
        rows = np.flatnonzero(low.any(axis=1))
        held[rows, worst[rows]] = True
    return np.maximum(solution, floor) / size
