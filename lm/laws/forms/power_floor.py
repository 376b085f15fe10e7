"""Power law with an irreducible loss: L(x) = a x^b + E with b < 0 (the source's equation 2.37)."""

from lm.laws.law import Law, grid


def loss(p, x):
    return p["a"] * x["x"] ** p["b"] + p["E"]


def rescale(p, s):
    return {**p, "a": p["a"] * s["x"] ** -p["b"]}


def starts(x, y):
    return grid(b=[-2.0, -1.2, -0.8, -0.5, -0.35, -0.25, -0.15, -0.08, -0.04])


power_floor = Law(
    name="power_floor",
    names=("a", "b", "E"),
    inputs=("x",),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(x) = a x^b + E",
    log=("a",),
    bounds={"b": (-20.0, 0.0), "E": (0.0, float("inf"))},
    linear=("a", "E"),
    monomials=(("a", "x", "b", 1.0), ("E", None, None, 1.0)),
)
