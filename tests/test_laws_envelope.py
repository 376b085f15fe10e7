"""Approach 1: the envelope of learning curves of a known surface."""

import numpy as np
import pandas as pd
import pytest

from lm.errors import BadInput
from lm.laws.envelope import envelope
from lm.laws.forms import LAWS
from lm.laws.runs import read_runs
from tests.published_tables import TRUE

CHINCHILLA = LAWS["chinchilla"]


def curves(sizes=25, checkpoints=60, params=TRUE, sigma=0.0):
    n = np.repeat(np.geomspace(2e7, 2e10, sizes), checkpoints)
    d = np.tile(np.geomspace(1e8, 2e12, checkpoints), sizes)
    loss = CHINCHILLA.predict(params, {"n": n, "d": d})
    loss *= np.exp(np.random.default_rng(0).normal(0, sigma, loss.size))
    run = np.repeat([f"run{k}" for k in range(sizes)], checkpoints)
    frame = pd.DataFrame(
        {"run_id": run, "n_params": n, "n_tokens": d, "flops": 6 * n * d, "loss": loss}
    )
    return read_runs(frame, CHINCHILLA)


def test_recovers_the_frontier_of_a_known_surface():
    found = envelope(curves())
    true = CHINCHILLA.exponents(TRUE)
    assert found.params["a"] == pytest.approx(true["a"], abs=0.01)
    assert found.params["a"] + found.params["b"] == pytest.approx(1, abs=1e-6)
    # The smallest and the largest size lie on the envelope only for want of others.
    sizes = [g.n for g in found.groups]
    assert min(sizes) > 2.1e7 and max(sizes) < 1.9e10 and len(sizes) > 10


def test_resamples_runs():
    found = envelope(curves(12, 30, sigma=0.002), bootstrap=30)
    assert found.samples["a"].size == 30
    assert 0 < np.std(found.samples["a"]) < 0.1


def test_needs_curves_of_several_sizes():
    runs = curves(2, 10)
    with pytest.raises(BadInput, match="three sizes"):
        envelope(runs)
    with pytest.raises(BadInput, match="'nothing'"):
        envelope(curves(3, 10), run_column="nothing")
    flat = curves(3, 10)
    flat.labels["run_id"][:] = "one"
    with pytest.raises(BadInput, match="changes its n"):
        envelope(flat)
    with pytest.raises(BadInput, match="train more sizes"):
        envelope(curves(3, 2))
