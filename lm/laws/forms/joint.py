"""Joint law: L(N, D) = a N^b + c D^d + E with b, d < 0 (the source's equation 2.38).

The surface of Chinchilla's law with other letters: A = a, alpha = -b, B = c, beta = -d.
"""

from lm.laws.law import Law, grid, two_power_exponents


def loss(p, x):
    return p["a"] * x["n"] ** p["b"] + p["c"] * x["d"] ** p["d"] + p["E"]


def rescale(p, s):
    return {**p, "a": p["a"] * s["n"] ** -p["b"], "c": p["c"] * s["d"] ** -p["d"]}


def starts(x, y):
    exponents = [-0.1, -0.25, -0.45, -0.8]
    return grid(b=exponents, d=exponents)


def exponents(p):
    return two_power_exponents(-p["b"], -p["d"])


joint = Law(
    name="joint",
    names=("a", "b", "c", "d", "E"),
    inputs=("n", "d"),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(N, D) = a N^b + c D^d + E",
    log=("a", "c"),
    bounds={"b": (-20.0, 0.0), "d": (-20.0, 0.0), "E": (0.0, float("inf"))},
    linear=("a", "c", "E"),
    monomials=(("a", "n", "b", 1.0), ("c", "d", "d", 1.0), ("E", None, None, 1.0)),
    compute_exponents=exponents,
)
