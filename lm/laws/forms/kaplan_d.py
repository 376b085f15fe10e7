"""Kaplan's law in data: L(D) = (D_c / D)^alpha_D (Kaplan et al. 2020, equation 1.2).

D counts training tokens; the model is large enough not to limit the loss.
"""

import numpy as np

from lm.laws.law import Law, grid


def loss(p, x):
    return (p["D_c"] / x["d"]) ** p["alpha_D"]


def rescale(p, s):
    return {**p, "D_c": p["D_c"] * s["d"]}


def starts(x, y):
    start = grid(alpha_D=[0.03, 0.05, 0.08, 0.12, 0.2, 0.4, 0.8])
    return start | {"D_c": np.exp(np.clip(np.mean(np.log(y)) / start["alpha_D"], -200, 200))}


kaplan_d = Law(
    name="kaplan_d",
    names=("D_c", "alpha_D"),
    inputs=("d",),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(D) = (D_c / D)^alpha_D, Kaplan et al. 2020, equation 1.2",
    log=("D_c",),
    bounds={"alpha_D": (0.0, 20.0)},
)
