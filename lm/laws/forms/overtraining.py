"""Over-training: L(C, M) = E + (a M^eta + b M^-eta) C^-eta (Gadre et al. 2024, equation 4).

C = 6 N D is compute and M = D / N the token multiplier; equal exponents alpha = beta = 2 eta are
what makes the exponent of C the same at every M.
"""

from lm.laws.law import Law, grid


def loss(p, x):
    compute = 6.0 * x["n"] * x["d"]
    multiplier = x["d"] / x["n"]
    eta = p["eta"]
    return p["E"] + (p["a"] * multiplier**eta + p["b"] * multiplier**-eta) * compute**-eta


def rescale(p, s):
    # M^eta C^-eta = (6 N^2)^-eta and M^-eta C^-eta = (6 D^2)^-eta.
    eta = p["eta"]
    return {**p, "a": p["a"] * s["n"] ** (2 * eta), "b": p["b"] * s["d"] ** (2 * eta)}


def starts(x, y):
    return grid(eta=[0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.45])


def exponents(p):
    return {"a": 0.5 + 0.0 * p["eta"], "b": 0.5 + 0.0 * p["eta"]}


overtraining = Law(
    name="overtraining",
    names=("E", "a", "b", "eta"),
    inputs=("n", "d"),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(N, D) = E + (a M^eta + b M^-eta) C^-eta, M = D / N, C = 6 N D, "
    "Gadre et al. 2024, equation 4",
    log=("a", "b"),
    bounds={"E": (0.0, float("inf")), "eta": (0.0, 10.0)},
    linear=("E", "a", "b"),
    compute_exponents=exponents,
)
