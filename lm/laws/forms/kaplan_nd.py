"""Kaplan's joint law: L(N, D) = [(N_c / N)^(alpha_N / alpha_D) + D_c / D]^alpha_D.

Kaplan et al. 2020, equation 1.5. N counts parameters without embeddings in that paper.
"""

import numpy as np

from lm.laws.law import Law, grid, two_power_exponents


def loss(p, x):
    by_size = (p["N_c"] / x["n"]) ** (p["alpha_N"] / p["alpha_D"])
    by_data = p["D_c"] / x["d"]
    return (by_size + by_data) ** p["alpha_D"]


def rescale(p, s):
    return {**p, "N_c": p["N_c"] * s["n"], "D_c": p["D_c"] * s["d"]}


def starts(x, y):
    """For fixed exponents L^(1/alpha_D) is linear in N_c^(alpha_N/alpha_D) and D_c."""
    start = grid(alpha_N=[0.04, 0.08, 0.15, 0.3], alpha_D=[0.05, 0.1, 0.2, 0.4])
    log_nc, log_dc = [], []
    for alpha_n, alpha_d in zip(start["alpha_N"], start["alpha_D"], strict=True):
        target = y ** (1 / alpha_d)
        columns = np.stack([x["n"] ** (-alpha_n / alpha_d), 1 / x["d"]], axis=1) / target[:, None]
        u, v = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)[0]
        floor = 1e-3 / np.mean(columns, axis=0)
        log_nc.append(np.log(max(u, floor[0])) * alpha_d / alpha_n)
        log_dc.append(np.log(max(v, floor[1])))
    return start | {"N_c": np.exp(log_nc), "D_c": np.exp(log_dc)}


def exponents(p):
    """Minimising the bracket under C = 6 N D is Chinchilla's problem with beta = 1."""
    return two_power_exponents(p["alpha_N"] / p["alpha_D"], 1.0)


kaplan_nd = Law(
    name="kaplan_nd",
    names=("N_c", "D_c", "alpha_N", "alpha_D"),
    inputs=("n", "d"),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(N, D) = [(N_c / N)^(alpha_N / alpha_D) + D_c / D]^alpha_D, "
    "Kaplan et al. 2020, equation 1.5",
    log=("N_c", "D_c", "alpha_N", "alpha_D"),
    compute_exponents=exponents,
)
