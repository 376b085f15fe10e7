"""Loss to accuracy, exponential: 1 - acc(L) = epsilon - k exp(-gamma L) (Gadre et al. 2024, eq. 5).

epsilon is the error of guessing; error falls exponentially as the loss does.
"""

import numpy as np

from lm.laws.law import Law, grid


def accuracy(p, x):
    return 1.0 - p["epsilon"] + p["k"] * np.exp(-p["gamma"] * x["loss"])


def rescale(p, s):
    return {**p, "gamma": p["gamma"] / s["loss"]}


def starts(x, y):
    return grid(gamma=[0.1, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0])


accuracy_exponential = Law(
    name="accuracy_exponential",
    names=("epsilon", "k", "gamma"),
    inputs=("loss",),
    formula=accuracy,
    rescale=rescale,
    starts=starts,
    source="acc(L) = 1 - epsilon + k exp(-gamma L), Gadre et al. 2024, equation 5",
    log=("k", "gamma"),
    linear=("epsilon", "k"),
    target="accuracy",
)
