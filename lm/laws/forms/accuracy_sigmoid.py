"""Loss to accuracy, sigmoid: acc(L) = b + a / (1 + exp(k (L - L_0))) (Bhagia et al. 2024).

b is the accuracy of guessing, a + b the ceiling: a metric that sits at chance, then rises.
"""

import numpy as np

from lm.laws.law import Law, grid


def accuracy(p, x):
    return p["b"] + p["a"] * np.exp(-np.logaddexp(0.0, p["k"] * (x["loss"] - p["L_0"])))


def rescale(p, s):
    return {**p, "k": p["k"] / s["loss"], "L_0": p["L_0"] * s["loss"]}


def starts(x, y):
    span = np.ptp(x["loss"]) + 1e-12
    middles = np.quantile(x["loss"], [0.1, 0.3, 0.5, 0.7, 0.9])
    return grid(k=np.array([2.0, 6.0, 15.0, 40.0]) / span, L_0=middles)


accuracy_sigmoid = Law(
    name="accuracy_sigmoid",
    names=("a", "k", "L_0", "b"),
    inputs=("loss",),
    formula=accuracy,
    rescale=rescale,
    starts=starts,
    source="acc(L) = b + a / (1 + exp(k (L - L_0))), Bhagia et al. 2024, equation 2",
    log=("a", "k"),
    linear=("a", "b"),
    target="accuracy",
)
