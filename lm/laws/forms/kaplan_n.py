"""Kaplan's law in model size: L(N) = (N_c / N)^alpha_N (Kaplan et al. 2020, equation 1.1).

N counts parameters without embeddings in that paper.
"""

import numpy as np

from lm.laws.law import Law, grid


def loss(p, x):
    return (p["N_c"] / x["n"]) ** p["alpha_N"]


def rescale(p, s):
    return {**p, "N_c": p["N_c"] * s["n"]}


def starts(x, y):
    start = grid(alpha_N=[0.03, 0.05, 0.08, 0.12, 0.2, 0.4, 0.8])
    return start | {"N_c": np.exp(np.clip(np.mean(np.log(y)) / start["alpha_N"], -200, 200))}


kaplan_n = Law(
    name="kaplan_n",
    names=("N_c", "alpha_N"),
    inputs=("n",),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(N) = (N_c / N)^alpha_N, Kaplan et al. 2020, equation 1.1",
    log=("N_c",),
    bounds={"alpha_N": (0.0, 20.0)},
)
