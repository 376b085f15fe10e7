"""Chinchilla: L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, equation 2; 2.39)."""

from lm.laws.law import Law, grid, two_power_exponents


def loss(p, x):
    return p["E"] + p["A"] * x["n"] ** -p["alpha"] + p["B"] * x["d"] ** -p["beta"]


def rescale(p, s):
    return {**p, "A": p["A"] * s["n"] ** p["alpha"], "B": p["B"] * s["d"] ** p["beta"]}


def starts(x, y):
    exponents = [0.1, 0.25, 0.45, 0.8]
    return grid(alpha=exponents, beta=exponents)


def exponents(p):
    return two_power_exponents(p["alpha"], p["beta"])


chinchilla = Law(
    name="chinchilla",
    names=("E", "A", "B", "alpha", "beta"),
    inputs=("n", "d"),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(N, D) = E + A / N^alpha + B / D^beta, Hoffmann et al. 2022, equation 2",
    log=("A", "B"),
    bounds={"E": (0.0, float("inf")), "alpha": (0.0, 20.0), "beta": (0.0, 20.0)},
    linear=("E", "A", "B"),
    monomials=(
        ("A", "n", "alpha", -1.0),
        ("B", "d", "beta", -1.0),
        ("E", None, None, 1.0),
    ),
    compute_exponents=exponents,
)
