"""What an interval can be asked for: a function of the parameters that arrays and jets both enter.

A parameter, the exponents a and b, or the logarithms of N* and D* at a budget. Imports NumPy only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.law import Law, Params


@dataclass(frozen=True)
class Quantity:
    """A named function of a law's parameters. `log` says that its natural scale is logarithmic."""

    name: str
    value: Callable[[Params], Any]
    log: bool = False


def quantity(law: Law, name: str, flops: float | None = None) -> Quantity:
    """The quantity called `name`: a parameter, "a", "b", or "n_star" and "d_star" at 6 N D = flops.

    Raises BadInput for a name the law does not have.
    """
    if name in law.names:
        return Quantity(name, lambda p: p[name], name in law.log)
    if name in ("a", "b") and law.compute_exponents is not None:
        return Quantity(name, lambda p: law.compute_exponents(p)[name])  # type: ignore[misc]
    if name in ("n_star", "d_star") and flops is not None and law.name == "chinchilla":
        sign = 1.0 if name == "n_star" else -1.0

        def optimum(p: Params) -> Any:
            """Hoffmann et al. 2022, equation 4."""
            total = p["alpha"] + p["beta"]
            log_g = (np.log(p["alpha"] * p["A"]) - np.log(p["beta"] * p["B"])) / total
            share = (p["beta"] if sign > 0 else p["alpha"]) / total
            return np.exp(sign * log_g + share * np.log(flops / 6.0))

        return Quantity(name, optimum, True)
    raise BadInput(
        f"law {law.name} has no quantity {name!r}: ask for {', '.join(law.names)}"
        + (", a, b" if law.compute_exponents else "")
    )
