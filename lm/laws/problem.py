"""A law, a table of runs and an objective as a function of a vector: coordinates and derivatives.

Inputs are divided by their geometric means, so that nothing depends on units; positive parameters
are fitted as logarithms; parameters may be fixed, tied or bounded. Imports NumPy only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lm.errors import BadInput
from lm.laws.jet import Jet, variable
from lm.laws.law import Law
from lm.laws.monomial import MonomialSum
from lm.laws.newton import Point
from lm.laws.objective import Objective

Array = np.ndarray

CHUNK = 16384  # elements of one temporary: large enough for NumPy, small enough for the cache
ROUNDING = 2.0e-16  # of a residual


@dataclass(frozen=True)
class Constraints:
    """Parameters held at a value, made equal to another, or kept in [low, high]; natural units."""

    fixed: Mapping[str, float]
    tied: Mapping[str, str]
    bounds: Mapping[str, tuple[float, float]]

    @staticmethod
    def of(law: Law, fixed=None, tied=None, bounds=None) -> "Constraints":
        """Checked against the law's parameter names and signs."""
        made = Constraints(dict(fixed or {}), dict(tied or {}), dict(bounds or {}))
        for name in (*made.fixed, *made.tied, *made.tied.values(), *made.bounds):
            if name not in law.names:
                raise BadInput(
                    f"law {law.name} has no parameter {name!r}: it has {', '.join(law.names)}"
                )
        for name, value in made.fixed.items():
            if wanted := law.misfit(name, value):
                raise BadInput(f"{name} is fixed at {value:g}, but must be {wanted}: give another")
        for name, other in made.tied.items():
            if other in made.tied or other == name or name in made.fixed:
                raise BadInput(f"{name} = {other} ties a parameter twice: tie it to a free one")
            if (name in law.log) != (other in law.log):
                raise BadInput(f"{name} and {other} cannot be tied: one is positive, one is not")
        for name, (low, high) in made.bounds.items():
            if not low <= high:
                raise BadInput(f"bounds of {name} are ({low}, {high}): the first must be smaller")
            least, most = (0.0, np.inf) if name in law.log else law.bounds.get(name, (low, high))
            if high < least or low > most or (name in law.log and high <= 0):
                raise BadInput(
                    f"bounds of {name} are ({low:g}, {high:g}), but it lies between {least:g} and "
                    f"{most:g}: give a range within"
                )
        return made


class Coordinates:
    """The free parameters as a vector theta (S, P), and back."""

    def __init__(self, law: Law, factors: Mapping[str, float], constraints: Constraints):
        self.law, self.constraints = law, constraints
        self.free = [n for n in law.names if n not in {**constraints.fixed, **constraints.tied}]
        if not self.free:
            raise BadInput(f"every parameter of law {law.name} is fixed: leave at least one free")
        self.index = {name: k for k, name in enumerate(self.free)}
        for name, other in constraints.tied.items():
            if other in self.index:
                self.index[name] = self.index[other]
        self.is_log = np.array([n in law.log for n in self.free])
        self.factors = dict(factors)
        # Constraints are stated in natural units; they survive the change of units only where it
        # does not mix the constrained parameters with free ones.
        self.scaled = self._survives()
        if self.scaled and constraints.fixed:
            values = {n: 1.0 for n in law.names} | dict(constraints.fixed)
            moved = law.rescale(values, self._inverse())
            self.held = {n: float(moved[n]) for n in constraints.fixed}
        else:
            self.held = dict(constraints.fixed)
        for name, other in constraints.tied.items():
            if other in constraints.fixed:
                self.held[name] = self.held[other]
        self.lower, self.upper = self._limits()
        # All parameters (logarithms of positive ones) are chain @ theta + offset.
        self.chain = np.zeros((len(law.names), len(self.free)))
        self.offset = np.zeros(len(law.names))
        for row, name in enumerate(law.names):
            if name in self.index:
                self.chain[row, self.index[name]] = 1.0
            else:
                value = self.held[name]
                self.offset[row] = np.log(value) if name in law.log else value

    def _inverse(self) -> dict[str, float]:
        return {role: 1.0 / f for role, f in self.factors.items()}

    def _survives(self) -> bool:
        constrained = {*self.constraints.fixed, *self.constraints.bounds}
        constrained |= {*self.constraints.tied, *self.constraints.tied.values()}
        draw = np.random.default_rng(0)
        seen = []
        for _ in range(2):
            values = {n: float(draw.uniform(0.2, 0.8)) for n in self.law.names}
            values |= dict(self.constraints.fixed)
            moved = self.law.rescale(values, self._inverse())
            for name in constrained - set(self.constraints.fixed):
                if moved[name] != values[name]:
                    return False
            seen.append([float(moved[n]) for n in self.constraints.fixed])
        return seen[0] == seen[1]

    def _limits(self) -> tuple[Array, Array]:
        lower, upper = [], []
        for name, log in zip(self.free, self.is_log, strict=True):
            low, high = self.law.bounds.get(name, (-np.inf, np.inf))
            own = self.constraints.bounds.get(name, (-np.inf, np.inf))
            if log:
                low, high = (np.log(v) if v > 0 else -np.inf for v in own)
            else:
                low, high = max(low, own[0]), min(high, own[1])
            lower.append(low)
            upper.append(high)
        return np.array(lower), np.array(upper)

    def leaves(self, theta: Array) -> dict[str, Jet | float]:
        """Parameters of the law in scaled units as jets of theta, shape (S, 1)."""
        own: list[Jet] = []
        for k, log in enumerate(self.is_log):
            column = theta[:, k : k + 1]
            if log:
                value = np.exp(column)
                own.append(Jet(value, {k: value}, {(k, k): value}))
            else:
                own.append(variable(column, k))
        params = {
            n: own[self.index[n]] if n in self.index else self.held[n] for n in self.law.names
        }
        return params if self.scaled else self.law.rescale(params, self._inverse())

    def natural(self, theta: Array) -> dict[str, Array]:
        """Parameters in natural units, each of shape (S,)."""
        params = self.scaled_params(theta)
        if not self.scaled:
            return params
        moved = self.law.rescale(params, self.factors)
        # What the user fixed comes back as written, not after two roundings.
        return moved | {n: np.full(len(theta), v) for n, v in self.constraints.fixed.items()}

    def scaled_params(self, theta: Array) -> dict[str, Array]:
        """Parameters in the units of the fit, each of shape (S,)."""
        own = np.where(self.is_log, np.exp(theta), theta)
        return {
            n: own[:, self.index[n]] if n in self.index else np.full(len(theta), self.held[n])
            for n in self.law.names
        }

    def theta(self, params: Mapping[str, Array]) -> Array:
        """theta (S, P) of parameters in natural units."""
        values = {n: np.atleast_1d(np.asarray(params[n], dtype=np.float64)) for n in self.law.names}
        if self.scaled:
            values = self.law.rescale(values, self._inverse())
        return self.of_scaled(values) if self.scaled else self._stack(values)

    def of_scaled(self, values: Mapping[str, Array]) -> Array:
        """theta (S, P) of parameters in scaled units."""
        if not self.scaled:
            values = self.law.rescale(values, self.factors)
        return self._stack(values)

    def _stack(self, values: Mapping[str, Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = [
                np.log(values[n]) if log else values[n]
                for n, log in zip(self.free, self.is_log, strict=True)
            ]
        return np.stack(np.broadcast_arrays(*columns), axis=1)


class Problem:
    """Objective and derivatives of a law on one table, for many theta and weights at once."""

    def __init__(
        self,
        law: Law,
        x: Mapping[str, Array],
        y: Array,
        objective: Objective,
        constraints: Constraints,
        weights: Array | None = None,
    ):
        self.law, self.objective, self.y = law, objective, np.asarray(y, dtype=np.float64)
        self.x = {role: np.asarray(x[role], dtype=np.float64) for role in law.inputs}
        self.factors = {r: float(np.exp(np.mean(np.log(self.x[r])))) for r in law.inputs}
        if "unique" in self.factors:
            self.factors["unique"] = self.factors["d"]  # one unit of tokens
        self.scaled_x = {role: v / self.factors[role] for role, v in self.x.items()}
        self.coordinates = Coordinates(law, self.factors, constraints)
        self.lower, self.upper = self.coordinates.lower, self.coordinates.upper
        self.sum = None
        if law.monomials and self.coordinates.scaled:
            self.sum = MonomialSum(law.monomials, law.names, law.log, self.scaled_x, self.y.size)
        # What errors are judged against: relative ones of a loss, plain ones of an accuracy.
        self.unit = self.y if law.target == "loss" else np.ones_like(self.y)
        self.weights = np.ones_like(self.y) if weights is None else np.asarray(weights, np.float64)

    def replaced(self, objective: Objective) -> "Problem":
        """The same table and coordinates under another objective."""
        other = object.__new__(Problem)
        other.__dict__.update(self.__dict__)
        other.objective = objective
        return other

    def reweighted(self, weights: Array) -> "Problem":
        """The same table with other weights: (n,), or (S, n) for one row of weights a problem."""
        other = object.__new__(Problem)
        other.__dict__.update(self.__dict__)
        other.weights = np.asarray(weights, dtype=np.float64)
        return other

    def predict(self, theta: Array) -> Array:
        """Predictions (S, n)."""
        with np.errstate(all="ignore"):
            jet = self.law.formula(self.coordinates.leaves(theta), self.scaled_x)
        return np.broadcast_to(jet.v, (len(theta), self.y.size))

    def residuals(self, theta: Array) -> Array:
        """Residuals in the objective's link (S, n): positive where the prediction is too high."""
        return self.objective.residual(self.predict(theta), self.y)

    def __call__(self, theta: Array, rows: Array) -> Point:
        """The point of every problem in `rows` at theta (s, P), in chunks."""
        S, P = theta.shape
        shapes = ((), (P,), (P,), (P,), (P, P), (P, P))
        point = Point(*(np.empty((S, *shape)) for shape in shapes))
        size = max(1, CHUNK // self.y.size)
        with np.errstate(all="ignore"):
            for start in range(0, S, size):
                part = slice(start, start + size)
                weights = self.weights if self.weights.ndim == 1 else self.weights[rows[part]]
                self._chunk(theta[part], weights, point, part)
        point.f[~np.isfinite(point.f)] = np.inf
        return point

    def gradient_terms(self, theta: Array) -> tuple[Array, Array]:
        """The gradient at one theta (P,) and the sums of its terms' absolute values (P,)."""
        r, slopes = self.slopes(theta)
        terms = self.weights * self.objective.slopes(r)[0] * slopes
        return terms.sum(axis=1), np.abs(terms).sum(axis=1)

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """Residuals (n,) and their derivatives (P, n) at one theta (P,)."""
        with np.errstate(all="ignore"):
            jet = self.law.formula(self.coordinates.leaves(theta[None]), self.scaled_x)
            predicted = np.broadcast_to(jet.v, (1, self.y.size))
            link, _ = self.objective.link_slopes(predicted)
            slopes = np.zeros((theta.size, self.y.size))
            for k, value in jet.g.items():
                slopes[k] = (value * link)[0]
            return self.objective.residual(predicted, self.y)[0], slopes

    def _chunk(self, theta: Array, w: Array, point: Point, part: slice) -> None:
        if self.sum is not None:
            chain = self.coordinates.chain
            sums = self.sum.sums(
                theta @ chain.T + self.coordinates.offset, self.y, w, self.objective
            )
            point.f[part], point.g[part] = sums.f, sums.g @ chain
            point.H[part], point.M[part] = chain.T @ sums.H @ chain, chain.T @ sums.M @ chain
            self._sizes(point, part, sums.secant)
            return
        S, P = theta.shape
        shape = (S, self.y.size)
        jet = self.law.formula(self.coordinates.leaves(theta), self.scaled_x)
        predicted = np.broadcast_to(jet.v, shape)
        r = self.objective.residual(predicted, self.y)
        link, link_slope = self.objective.link_slopes(predicted)
        first, second, secant = self.objective.slopes(r)
        point.f[part] = np.sum(w * self.objective.rho(r), axis=-1)
        gradient = np.zeros((S, P, shape[1]))
        for k, value in jet.g.items():
            np.multiply(value, link, out=gradient[:, k])
        pull, weight = w * first, w * secant
        point.g[part] = (gradient @ pull[:, :, None])[:, :, 0]
        # Second derivative of link(L): link' L'' + link'' L' L'; with L' = gradient / link'.
        bend = pull * link_slope / (link * link) if self.objective.link != "identity" else 0.0
        across = gradient.transpose(0, 2, 1)
        point.M[part] = (gradient * np.broadcast_to(weight, shape)[:, None]) @ across
        curvature = np.broadcast_to(w * second + bend, shape)
        H = (gradient * curvature[:, None]) @ across
        outer = pull * link
        for (i, j), value in jet.h.items():
            total = np.einsum("sn,sn->s", outer, np.broadcast_to(value, shape))
            H[:, i, j] += total
            if i != j:
                H[:, j, i] += total
        point.H[part] = H
        self._sizes(point, part, np.sum(np.broadcast_to(weight, shape), axis=-1))

    def _sizes(self, point: Point, part: slice, secant: Array) -> None:
        """Bounds on the gradient's terms and on its rounding, by Cauchy and Schwarz from M."""
        diagonal = np.einsum("spp->sp", point.M[part])
        point.terms[part] = np.sqrt(2.0 * np.maximum(point.f[part, None], 0.0) * diagonal)
        point.noise[part] = ROUNDING * np.sqrt(secant[:, None] * diagonal)
