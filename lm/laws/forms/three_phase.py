"""Three phases: L(x) = E + (L_0 - E) (1 + x / x_c)^-alpha (the source's figure 2.3).

A slow start at L_0 (best guess) while x is far below x_c, a power law of exponent alpha above it,
and the irreducible loss E at the end (the regions of Hestness et al. 2017, figure 6).
"""

import numpy as np

from lm.laws.law import Law, grid


def loss(p, x):
    learned = (1.0 + x["x"] / p["x_c"]) ** -p["alpha"]
    return p["E"] + (p["L_0"] - p["E"]) * learned


def rescale(p, s):
    return {**p, "x_c": p["x_c"] * s["x"]}


def starts(x, y):
    span = np.log(x["x"])
    knees = np.exp(np.quantile(span, [0.0, 0.25, 0.5, 0.75]))
    return grid(alpha=[0.1, 0.3, 0.7, 1.5], x_c=knees)


three_phase = Law(
    name="three_phase",
    names=("E", "L_0", "x_c", "alpha"),
    inputs=("x",),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(x) = E + (L_0 - E) (1 + x / x_c)^-alpha",
    log=("x_c",),
    bounds={"E": (0.0, float("inf")), "L_0": (0.0, float("inf")), "alpha": (0.0, 20.0)},
    linear=("E", "L_0"),
)
