"""What every scaling law is to the rest of lm/laws: names, inputs, one formula. Imports only NumPy.

A law is a pure function of a dict of parameters and a dict of inputs, written in the paper's
notation with NumPy operations. The same formula serves predictions (float64 arrays) and fitting,
where the parameters are jets (lm/laws/jet.py) that carry exact first and second derivatives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Params = Mapping[str, Any]  # parameter name -> float, array or jet
Inputs = Mapping[str, Any]  # column role -> array, in natural units (parameters, tokens, FLOPs)
Grid = dict[str, np.ndarray]  # parameter name -> one value a start

# (coefficient, role, exponent, sign): the term coefficient * x[role]^(sign * exponent); a constant
# term has no role and no exponent.
Monomial = tuple[str, str | None, str | None, float]


@dataclass(frozen=True)
class Law:
    """One law. Numbers live in the parameter dict, never here.

    `formula(p, x)` is the law; `rescale(p, s)` the parameters of the same curve after every input
    has been multiplied by s[role]; `starts(x, y)` values of the parameters that are not in
    `linear`, one per start, for inputs whose geometric mean is 1; `exponents(p)` the exponents
    of compute in N* and D*. Parameters in `log` are positive and fitted as logarithms; `bounds`
    are closed intervals for the others; the formula is affine in those named in `linear`.
    A law that is a sum of powers may list them as `monomials`, which only makes fitting faster.
    """

    name: str
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    formula: Callable[[Params, Inputs], Any]
    rescale: Callable[[Params, Mapping[str, float]], dict[str, Any]]
    starts: Callable[[dict[str, np.ndarray], np.ndarray], Grid]
    source: str
    log: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    linear: tuple[str, ...] = ()
    compute_exponents: Callable[[Params], dict[str, Any]] | None = None
    monomials: tuple[Monomial, ...] = ()
    target: str = "loss"

    def predict(self, params: Params, x: Inputs) -> np.ndarray:
        """Predictions in float64, of shape (shape of the parameters) + (shape of the inputs).

        Parameters may be floats or arrays of one common shape (bootstrap samples, say).
        """
        inputs = {role: np.asarray(x[role], dtype=np.float64) for role in self.inputs}
        rank = max(value.ndim for value in inputs.values())
        lifted = {}
        for name, value in params.items():
            array = np.asarray(value, dtype=np.float64)
            lifted[name] = array.reshape(array.shape + (1,) * rank)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(self.formula(lifted, inputs), dtype=np.float64)

    def exponents(self, params: Params) -> dict[str, Any] | None:
        """{"a", "b"}: N* grows as C^a and D* as C^b (a + b = 1), or None where a law has none.

        NaN where both exponents of the law are 0, so that nothing is best.
        """
        if self.compute_exponents is None:
            return None
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in params.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.compute_exponents(arrays)

    def misfit(self, name: str, value: float) -> str:
        """What a value of a parameter has to be, in words; empty where it is that."""
        low, high = self.bounds.get(name, (-np.inf, np.inf))
        if not np.isfinite(value) or (name in self.log and value <= 0):
            return "finite and above 0" if name in self.log else "finite"
        if low <= value <= high:
            return ""
        return f"{low:g} or more" if high == np.inf else f"from {low:g} to {high:g}"


def grid(**axes: Any) -> Grid:
    """Every combination of the given values: name -> flat array, all of one length."""
    mesh = np.meshgrid(*(np.asarray(v, dtype=np.float64) for v in axes.values()), indexing="ij")
    return {name: values.ravel() for name, values in zip(axes, mesh, strict=True)}


def two_power_exponents(alpha: Any, beta: Any) -> dict[str, Any]:
    """Exponents of compute where L falls as N^-alpha + D^-beta under C proportional to N D.

    Hoffmann et al. 2022, equation 4: a = beta / (alpha + beta), b = alpha / (alpha + beta).
    """
    return {"a": beta / (alpha + beta), "b": alpha / (alpha + beta)}
