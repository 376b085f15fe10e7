"""L(N, D) as planning sees it: one law with one or many parameter sets, and its inverse in D.

Arrays have shape (samples, points): parameter sets down, model sizes across. Imports NumPy, the
laws and the errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lm.errors import BadInput
from lm.laws.forms import LAWS
from lm.laws.forms.data_constrained import effective, optimal_size
from lm.laws.published import PUBLISHED


class Core(NamedTuple):
    """The two falling powers inside a law, L = rise(A N^-alpha + B D^-beta); fall inverts rise."""

    A: Any
    alpha: Any
    B: Any
    beta: Any
    rise: Callable[[Any], Any]
    fall: Callable[[Any], Any]


def _above(floor: Any, A: Any, alpha: Any, B: Any, beta: Any) -> Core:
    return Core(A, alpha, B, beta, lambda s: floor + s, lambda loss: loss - floor)


def _kaplan(p: Mapping[str, Any]) -> Core:
    alpha = p["alpha_N"] / p["alpha_D"]
    return Core(p["N_c"] ** alpha, alpha, p["D_c"], 1.0 + 0.0 * alpha,
                lambda s: s ** p["alpha_D"], lambda loss: loss ** (1 / p["alpha_D"]))  # fmt: skip


def _overtraining(p: Mapping[str, Any]) -> Core:
    # M^eta C^-eta = (6 N^2)^-eta and M^-eta C^-eta = (6 D^2)^-eta.
    scale = 6.0 ** -p["eta"]
    return _above(p["E"], p["a"] * scale, 2 * p["eta"], p["b"] * scale, 2 * p["eta"])


def _chinchilla(p: Mapping[str, Any]) -> Core:
    return _above(p["E"], p["A"], p["alpha"], p["B"], p["beta"])


CORES: dict[str, Callable[[Mapping[str, Any]], Core]] = {
    "chinchilla": _chinchilla,
    "data_constrained": _chinchilla,
    "joint": lambda p: _above(p["E"], p["a"], -p["b"], p["c"], -p["d"]),
    "kaplan_nd": _kaplan,
    "overtraining": _overtraining,
}


@dataclass(frozen=True)
class Surface:
    """A law of N and D with its parameters, each of shape (samples, 1), and the unique tokens.

    `unique` None means that data never repeats. Made by `surface`.
    """

    law: str
    params: dict[str, np.ndarray]
    unique: float | None = None

    @property
    def core(self) -> Core | None:
        """The two powers of the law, or None for a law that this file does not know."""
        return CORES[self.law](self.params) if self.law in CORES else None

    @property
    def samples(self) -> int:
        return len(next(iter(self.params.values())))

    def loss(self, n: Any, d: Any) -> np.ndarray:
        """Returns the loss in nats per token at N parameters and D tokens."""
        unique = np.inf if self.unique is None else self.unique
        if self.law == "data_constrained" and self.unique is None:
            core = _chinchilla(self.params)
            with np.errstate(all="ignore"):
                return core.rise(core.A * n**-core.alpha + core.B * d**-core.beta)
        with np.errstate(all="ignore"):
            return LAWS[self.law].formula(self.params, {"n": n, "d": d, "unique": unique})

    def tokens(self, n: Any, loss: Any) -> np.ndarray:
        """Returns the D at which N parameters reach the loss; infinite where none does."""
        core = self.core
        if core is None:
            return self._tokens_by_bisection(n, loss)
        with np.errstate(all="ignore"):
            size = n
            if self.unique is not None:
                distinct = np.minimum(optimal_size(self.params, self.unique), n)
                size = effective(n, distinct, self.params["R_N"])
            left = core.fall(loss) - core.A * size**-core.alpha
            d = np.where(left > 0, left / core.B, 0.0) ** (-1 / core.beta)
            if self.unique is None:
                return d
            # Effective tokens back to trained ones: D' = U (1 + R* (1 - exp(-R / R*))).
            half_life, unique = self.params["R_D"], self.unique
            used_up = (d / unique - 1) / half_life
            repeats = -half_life * np.log1p(-np.minimum(used_up, 1.0))
            return np.where(d <= unique, d, unique * (1 + repeats))

    def _tokens_by_bisection(self, n: Any, loss: Any) -> np.ndarray:
        shape = np.broadcast_shapes(np.shape(n), np.shape(loss), (self.samples, 1))
        low, high = np.zeros(shape), np.full(shape, 100.0)  # log tokens; e^100 is without end
        for _ in range(60):
            middle = (low + high) / 2
            reached = self.loss(n, np.exp(middle)) <= loss
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return np.where(high < 100.0, np.exp(high), np.inf)

    def floor(self) -> np.ndarray:
        """Returns the loss that no amount of compute passes, shape (samples,)."""
        with np.errstate(all="ignore"):
            return np.ravel(self.loss(np.full((self.samples, 1), 1e200), 1e200))


def surface(law: str, params: Mapping[str, Any], unique: float | None = None) -> Surface:
    """Returns the surface of a law by name; params hold floats or arrays (samples,).

    Unique tokens turn a Chinchilla surface into the data-constrained law with the decay constants
    of `data_constrained_2023`. Raises BadInput where the law has no N and D, lacks a parameter, or
    has no data-constrained form.
    """
    known = LAWS.get(law)
    if known is None or not {"n", "d"} <= set(known.inputs):
        usable = ", ".join(name for name, f in LAWS.items() if {"n", "d"} <= set(f.inputs))
        raise BadInput(
            f"the law {law!r} does not give a loss from N and D, so nothing can be planned with "
            f"it: fit one of {usable}"
        )
    lacking = [name for name in known.names if name not in params]
    if lacking:
        raise BadInput(f"the {law} law lacks its parameter {lacking[0]}: give {known.names}")
    columns = {
        name: np.atleast_1d(np.asarray(params[name], np.float64))[:, None] for name in known.names
    }
    if unique is not None and law != "data_constrained":
        if law not in CORES or law == "kaplan_nd":
            raise BadInput(
                f"--unique_tokens needs a law with a floor and two powers, which {law} is not: "
                "use a chinchilla, joint or data_constrained law"
            )
        core = CORES[law](columns)
        decay = {k: np.full((1, 1), PUBLISHED["data_constrained_2023"].params[k]) for k in DECAY}
        columns = {"E": columns["E"], "A": core.A, "B": core.B, "alpha": core.alpha,
                   "beta": core.beta} | decay  # fmt: skip
        law = "data_constrained"
    return Surface(law, columns, unique)


DECAY = ("R_D", "R_N")
