"""Resampling by row, cluster and stratum; widths against a published table."""

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws.bootstrap import bias_corrected, bootstrap, draw_counts, refit
from lm.laws.fit import fit
from lm.laws.forms import LAWS
from tests.published_tables import TRUE, chinchilla_240, cloud, noisy

CHINCHILLA = LAWS["chinchilla"]


def test_rows_are_drawn_with_replacement():
    counts = draw_counts(50, 400, 0)
    assert counts.shape == (400, 50)
    np.testing.assert_array_equal(counts.sum(axis=1), 50)
    assert np.mean(counts == 0) == pytest.approx(np.exp(-1), abs=0.01)
    np.testing.assert_array_equal(counts, draw_counts(50, 400, 0))
    assert np.any(counts != draw_counts(50, 400, 1))


def test_clusters_rise_and_fall_together():
    cluster = np.repeat(list("abcdefgh"), 5)
    counts = draw_counts(40, 100, 0, cluster=cluster).reshape(100, 8, 5)
    assert np.all(counts == counts[:, :, :1])
    np.testing.assert_array_equal(counts[:, :, 0].sum(axis=1), 8)


def test_strata_keep_their_size():
    strata = np.repeat([1, 2, 3], [4, 6, 10])
    counts = draw_counts(20, 100, 0, strata=strata)
    for label, size in ((1, 4), (2, 6), (3, 10)):
        np.testing.assert_array_equal(counts[:, strata == label].sum(axis=1), size)
    with pytest.raises(BadInput, match="several strata"):
        draw_counts(4, 10, 0, cluster=np.array([1, 1, 2, 2]), strata=np.array([1, 2, 2, 2]))


def test_every_sample_is_the_minimum_of_its_own_table():
    x = cloud(80)
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y)
    samples = bootstrap(found, 20, 3)
    assert len(samples) == 20 and samples.failed == 0
    counts = draw_counts(80, 20, 3)
    for k in (0, 7, 19):
        rows = np.repeat(np.arange(80), counts[k].astype(int))
        alone = fit(CHINCHILLA, {r: v[rows] for r, v in x.items()}, y[rows])
        for name, value in alone.params.items():
            assert samples.params[name][k] == pytest.approx(value, rel=1e-8)


def test_checkpoints_of_one_run_are_not_independent():
    """Fault: intervals too narrow because checkpoints of one run are counted as runs."""
    rng = np.random.default_rng(0)
    runs, checkpoints = 40, 8
    n = np.repeat(np.exp(rng.uniform(17.5, 23.5, runs)), checkpoints)
    d = (np.exp(rng.uniform(22, 26, runs))[:, None] * np.geomspace(0.2, 1, checkpoints)).ravel()
    x = {"n": n, "d": d}
    shared = np.repeat(rng.normal(0, 0.01, runs), checkpoints)
    y = CHINCHILLA.predict(TRUE, x) * np.exp(shared + rng.normal(0, 1e-3, n.size))
    found = fit(CHINCHILLA, x, y, objective="squared_log")
    by_row = bootstrap(found, 200, 0)
    by_run = bootstrap(found, 200, 0, cluster=np.repeat(np.arange(runs), checkpoints))
    wider = np.std(by_run.params["E"]) / np.std(by_row.params["E"])
    assert 1.8 < wider < 4.5  # towards sqrt(8)
    with pytest.raises(BadInput, match="clusters"):
        bootstrap(found, 10, cluster=np.repeat([1, 2], 160))


def test_widths_of_the_published_replication():
    """Fault: intervals too narrow by 50 times. The published standard errors are from 4000."""
    x, y = chinchilla_240()
    found = fit(CHINCHILLA, x, y)
    samples = bootstrap(found, 4000, 0)
    assert samples.failed == 0
    p = samples.params
    spread = {name: np.std(p[name], ddof=1) for name in p}
    spread["a"] = np.std(p["beta"] / (p["alpha"] + p["beta"]), ddof=1)
    spread["log_A"], spread["log_B"] = np.std(np.log(p["A"])), np.std(np.log(p["B"]))
    published = dict(
        E=0.0257, A=124.5, alpha=0.0154, beta=0.0206, a=0.0200, log_A=0.258, log_B=0.421
    )
    for name, width in published.items():
        assert spread[name] == pytest.approx(width, rel=0.10), name
    assert spread["B"] == pytest.approx(1293, rel=0.20)


def test_refits_may_keep_their_failures():
    x = cloud(30)
    found = fit(CHINCHILLA, x, noisy(x, 0.01))
    weights = np.ones((2, 30))
    weights[1, 4:] = 0.0  # four rows cannot hold five parameters
    kept = refit(found, weights, drop_failed=False)
    assert len(kept) == 2 and kept.reached[0]
    for name, value in found.params.items():
        assert kept.params[name][0] == pytest.approx(value, rel=1e-8)


def test_blocks_change_nothing_and_are_told(monkeypatch):
    x = cloud(60)
    found = fit(CHINCHILLA, x, noisy(x, 0.01))
    whole = bootstrap(found, 120, 5)
    monkeypatch.setattr("lm.laws.bootstrap.BLOCK", 60 * 50)
    told = []
    parts = bootstrap(found, 120, 5, progress=told.append)
    assert told == [50, 100, 120]
    np.testing.assert_allclose(parts.theta, whole.theta, rtol=1e-9)


def test_bias_correction_moves_percentiles_by_where_the_estimate_lies():
    values = np.random.default_rng(0).normal(3.0, 2.0, 20_000)
    levels = (2.5, 10.0, 50.0, 90.0, 97.5)
    centred = bias_corrected(values, float(np.median(values)), levels)
    np.testing.assert_allclose(centred, np.percentile(values, levels), atol=1e-3)
    # An estimate half a standard error above the bootstrap's middle: normal values move by one.
    above = bias_corrected(values, 4.0, levels)
    np.testing.assert_allclose(np.array(above) - centred, 2.0, atol=0.25)
    # Any increasing scale gives the same interval.
    np.testing.assert_allclose(
        bias_corrected(np.exp(values), np.exp(4.0), levels), np.exp(above), rtol=0.02
    )
    assert bias_corrected(np.ones(50), 1.0, levels) == [1.0] * 5
    assert all(np.isfinite(bias_corrected(values, 1e9, levels)))
