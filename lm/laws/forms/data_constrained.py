"""Data-constrained law: repeated tokens and excess parameters are worth less.

Muennighoff et al. 2023, section 3.1: L = E + A / N'^alpha + B / D'^beta, where
D' = U_D + U_D R_D (1 - exp(-(D/U_D - 1) / R_D)) counts effective tokens of U unique ones,
N' = U_N + U_N R_N (1 - exp(-(N/U_N - 1) / R_N)) effective parameters beyond U_N = min(N, N_opt),
and N_opt(U) is the size for which U tokens are compute-optimal under C = 6 N D.
R_D and R_N are the paper's R_D* and R_N*. With R_D, R_N large it is Chinchilla's law.
"""

import numpy as np

from lm.laws.law import Law, grid, two_power_exponents


def optimal_size(p, unique):
    """N_opt(U) = G (G U)^(beta/alpha), G = (alpha A / (beta B))^(1/(alpha + beta))."""
    alpha, beta = p["alpha"], p["beta"]
    log_g = np.log(alpha * p["A"] / (beta * p["B"])) / (alpha + beta)
    return np.exp(log_g + (beta / alpha) * (log_g + np.log(unique)))


def effective(used, distinct, half_life):
    """distinct (1 + R* (1 - exp(-R / R*))), R = used / distinct - 1; finite for any R*."""
    repeats = used / distinct - 1.0
    return distinct * (1.0 - half_life * np.expm1(-repeats / half_life))


def loss(p, x):
    unique_d = np.minimum(x["d"], x["unique"])
    unique_n = np.minimum(optimal_size(p, x["unique"]), x["n"])
    n = effective(x["n"], unique_n, p["R_N"])
    d = effective(x["d"], unique_d, p["R_D"])
    return p["E"] + p["A"] * n ** -p["alpha"] + p["B"] * d ** -p["beta"]


def rescale(p, s):
    """Unique tokens are counted in the unit of D, so s["unique"] must equal s["d"]."""
    return {**p, "A": p["A"] * s["n"] ** p["alpha"], "B": p["B"] * s["d"] ** p["beta"]}


def starts(x, y):
    """Chinchilla's surface without decay at a few exponents, times a grid of both R*."""
    start = grid(
        alpha=[0.25, 0.4], R_D=np.geomspace(1.0, 300.0, 6), R_N=np.geomspace(0.5, 100.0, 6)
    )
    start["beta"] = start["alpha"]
    fitted = []
    for alpha in start["alpha"]:
        columns = np.stack([np.ones_like(y), x["n"] ** -alpha, x["d"] ** -alpha], axis=1)
        solution = np.linalg.lstsq(columns / y[:, None], np.ones_like(y), rcond=None)[0]
        fitted.append(np.maximum(solution, 0.02 * y.min() / columns.mean(axis=0)))
    start["E"], start["A"], start["B"] = np.array(fitted).T
    return start


def exponents(p):
    """Those of the law without repetition."""
    return two_power_exponents(p["alpha"], p["beta"])


data_constrained = Law(
    name="data_constrained",
    names=("E", "A", "B", "alpha", "beta", "R_D", "R_N"),
    inputs=("n", "d", "unique"),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(N, D, U) = E + A / N'^alpha + B / D'^beta, "
    "D' = U + U R_D (1 - exp(-(D / U - 1) / R_D)) and N' alike with R_N, "
    "Muennighoff et al. 2023, section 3.1",
    log=("A", "B", "alpha", "beta", "R_D", "R_N"),
    bounds={"E": (0.0, float("inf"))},
    compute_exponents=exponents,
)
