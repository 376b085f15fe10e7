"""The published tables, where this machine has them, and generated ones like them."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from lm.laws.forms import LAWS

DATA = Path(__file__).parents[2] / "shared" / "data"

TRUE = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}
DECAY = {
    "E": math.exp(0.6254804),
    "A": math.exp(6.255414),
    "B": math.exp(7.3049974),
    "alpha": 0.3526596,
    "beta": 0.3526596,
}


def path_of(name):
    """The path of a published table; skips the test where it is absent."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{name} is not on this machine")
    return path


def columns(name):
    """A published table as {column: float64 or text array}."""
    with path_of(name).open() as file:
        rows = list(csv.DictReader(file))
    found = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        try:
            found[key] = np.array([float(v) for v in values])
        except ValueError:
            found[key] = np.array(values)
    return found


def chinchilla_240():
    """x and y of the 240 runs of the published replication."""
    table = columns("chinchilla_epoch.csv")
    kept = table["excluded_in_replication"] == 0
    x = {"n": table["n_params"][kept], "d": table["n_tokens"][kept], "flops": table["flops"][kept]}
    return x, table["loss"][kept]


def cloud(rows=240, seed=0):
    """x of runs scattered over sizes and tokens, natural units."""
    rng = np.random.default_rng(seed)
    n = np.exp(rng.uniform(np.log(5e7), np.log(1.6e10), rows))
    d = np.exp(rng.uniform(np.log(2e9), np.log(5e11), rows))
    return {"n": n, "d": d, "flops": 6 * n * d}


def isoflops(groups=5, sizes=15, width=10.0):
    """x of runs on FLOP budgets, sizes even in log N around 20 tokens a parameter."""
    budgets = np.repeat(np.geomspace(6e18, 3e21, groups), sizes)
    factor = np.tile(np.geomspace(1 / width, width, sizes), groups)
    n = factor * np.sqrt(budgets / 120)
    return {"n": n, "d": budgets / (6 * n), "flops": budgets}


def noisy(x, sigma=0.01, seed=0, params=TRUE, law="chinchilla"):
    """Losses of a law with Gaussian noise of this size on their logarithm."""
    exact = LAWS[law].predict(params, x)
    return exact * np.exp(np.random.default_rng(seed).normal(0, sigma, exact.shape))
