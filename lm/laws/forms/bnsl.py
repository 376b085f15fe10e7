"""Broken neural scaling law (Caballero et al. 2022, equation 1), with any number of breaks.

y(x) = a + b x^-c0 * product over i of (1 + (x / d_i)^(1 / f_i))^(-c_i f_i): the log-log slope
changes by c_i around x = d_i, the more sharply the smaller f_i; a c_i < 0 bends the curve up.
"""

import numpy as np

from lm.laws.law import Grid, Law, grid


def n_breaks(p):
    """How many breaks a dict of parameters describes."""
    return sum(name[:1] == "f" for name in p)


def loss(p, x):
    log_x = np.log(x["x"])
    exponent = -p["c0"] * log_x
    for i in range(1, n_breaks(p) + 1):
        # log(1 + z^(1/f)) through logaddexp: z^(1/f) overflows for a sharp break.
        bend = np.logaddexp(0.0, (log_x - np.log(p[f"d{i}"])) / p[f"f{i}"])
        exponent = exponent - p[f"c{i}"] * p[f"f{i}"] * bend
    return p["a"] + p["b"] * np.exp(exponent)


def rescale(p, s):
    breaks = {f"d{i}": p[f"d{i}"] * s["x"] for i in range(1, n_breaks(p) + 1)}
    return {**p, "b": p["b"] * s["x"] ** p["c0"], **breaks}


def bnsl(breaks: int = 1) -> Law:
    """The law with this many breaks; parameters a, b, c0, then c_i, d_i, f_i for each break."""

    def starts(x, y) -> Grid:
        if breaks == 0:
            return grid(c0=[-0.2, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
        knees = np.quantile(np.log(x["x"]), np.linspace(0.1, 0.9, 7 if breaks == 1 else 5))
        first = grid(
            c0=[-0.2, 0.05, 0.3], c1=[-0.5, 0.3, 1.0, 4.0], d1=np.exp(knees), f1=[0.05, 0.3]
        )
        if breaks == 1:
            return first
        # With more breaks a full product is too many: draw knees in order, slopes at random.
        draw = np.random.default_rng(0)
        count = 90 * breaks
        start = {"c0": draw.choice([-0.2, 0.05, 0.3], count)}
        low, high = np.log(x["x"]).min(), np.log(x["x"]).max()
        ordered = np.sort(draw.uniform(low, high, (count, breaks)), axis=1)
        for i in range(1, breaks + 1):
            start[f"c{i}"] = draw.choice([-1.0, -0.3, 0.3, 1.0, 4.0], count)
            start[f"d{i}"] = np.exp(ordered[:, i - 1])
            start[f"f{i}"] = draw.choice([0.05, 0.15, 0.4], count)
        return start

    numbers = range(1, breaks + 1)
    return Law(
        name="bnsl",
        names=("a", "b", "c0", *(f"{letter}{i}" for i in numbers for letter in "cdf")),
        inputs=("x",),
        formula=loss,
        rescale=rescale,
        starts=starts,
        source="y(x) = a + b x^-c0 product_i (1 + (x / d_i)^(1 / f_i))^(-c_i f_i), "
        "Caballero et al. 2022, equation 1",
        log=("b", *(f"{letter}{i}" for i in numbers for letter in "df")),
        bounds={"a": (0.0, float("inf"))},
        linear=("a", "b"),
    )
