"""Power law: L(x) = a x^b with b < 0 (the source's equation 2.36)."""

from lm.laws.law import Law, grid


def loss(p, x):
    return p["a"] * x["x"] ** p["b"]


def rescale(p, s):
    return {**p, "a": p["a"] * s["x"] ** -p["b"]}


def starts(x, y):
    return grid(b=[-1.0, -0.5, -0.3, -0.2, -0.1, -0.05, -0.02])


power = Law(
    name="power",
    names=("a", "b"),
    inputs=("x",),
    formula=loss,
    rescale=rescale,
    starts=starts,
    source="L(x) = a x^b",
    log=("a",),
    bounds={"b": (-20.0, 0.0)},
    linear=("a",),
    monomials=(("a", "x", "b", 1.0),),
)
