"""Out-of-sample checks: thresholds, roll-outs, groups left out, comparison of laws."""

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws.fit import fit
from lm.laws.forms import LAWS
from lm.laws.validate import compare, leave_out, minus_two_log_likelihood, predict_above, roll_out
from tests.published_tables import TRUE, chinchilla_240, cloud, noisy

CHINCHILLA = LAWS["chinchilla"]


def test_published_table_above_1e21():
    x, y = chinchilla_240()
    held = predict_above(CHINCHILLA, x, y, x["flops"], 1e21)
    assert held.fitted.size == 217 and held.held.size == 23
    assert held.mean_relative_error == pytest.approx(0.0105, abs=5e-5)


def test_nothing_above_the_threshold_is_seen_by_the_fit():
    x = cloud(100)
    y = noisy(x, 0.01)
    threshold = np.quantile(x["flops"], 0.8)
    high = x["flops"] >= threshold
    changed = np.where(high, 2 * y, y)
    one, other = (predict_above(CHINCHILLA, x, v, x["flops"], threshold) for v in (y, changed))
    assert one.params == other.params
    np.testing.assert_allclose(1 + other.errors, (1 + one.errors) / 2, rtol=1e-12)
    assert one.mean_relative_error < 0.02
    np.testing.assert_array_equal(np.sort(np.append(one.fitted, one.held)), np.arange(100))


def test_roll_out_grows_and_settings_travel():
    x = cloud(100)
    y = noisy(x, 0.01)
    weights = np.linspace(1, 2, 100)
    rolled = roll_out(CHINCHILLA, x, y, x["flops"], fixed={"E": 1.69}, weights=weights)
    sizes = [h.fitted.size for h in rolled]
    assert sizes == sorted(sizes) and sizes[0] == 50 and sizes[-1] == 90
    assert all(h.params["E"] == 1.69 for h in rolled)
    with pytest.raises(BadInput, match="no threshold"):
        roll_out(CHINCHILLA, x, y, x["flops"], thresholds=[1.0])
    with pytest.raises(BadInput, match="0 runs below"):
        predict_above(CHINCHILLA, x, y, x["flops"], 1.0)


def test_each_size_left_out_is_refitted_without_it():
    x = cloud(60)
    x["n"] = np.repeat(np.geomspace(1e8, 1e10, 6), 10)
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y)
    left = leave_out(found, x["n"])
    assert len(left) == 6
    for held in (left[0], left[5]):
        keep = np.setdiff1d(np.arange(60), held.held)
        alone = fit(CHINCHILLA, {r: v[keep] for r, v in x.items()}, y[keep])
        assert held.params == pytest.approx(alone.params, rel=1e-8)
        assert np.ptp(x["n"][held.held]) == 0
        rows = {r: v[held.held] for r, v in x.items()}
        np.testing.assert_allclose(held.errors, alone.predict(rows) / y[held.held] - 1, rtol=1e-6)
    with pytest.raises(BadInput, match="one label"):
        leave_out(found, np.ones(60))


def test_comparison_puts_the_true_law_first():
    x = cloud(120)
    y = noisy(x, 0.004)
    laws = [LAWS[n] for n in ("kaplan_nd", "chinchilla", "overtraining")]
    ranked = compare(laws, x, y, x["flops"], objective="squared_log")
    assert ranked[0].law == "chinchilla"
    assert ranked[0].aic == min(s.aic for s in ranked)
    errors = [s.out_of_sample for s in ranked]
    assert errors == sorted(errors)


def test_information_criteria_by_hand():
    r = np.array([0.01, -0.02, 0.005])
    sigma = np.sqrt(np.mean(r**2))
    normal = -2 * np.sum(-0.5 * (r / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi))
    assert minus_two_log_likelihood(r, False) == pytest.approx(normal, rel=1e-12)
    b = np.mean(np.abs(r))
    laplace = -2 * np.sum(-np.abs(r) / b - np.log(2 * b))
    assert minus_two_log_likelihood(r, True) == pytest.approx(laplace, rel=1e-12)
    x, y = cloud(50), noisy(cloud(50), 0.01)
    (score,) = compare([CHINCHILLA], x, y, x["flops"])
    found = fit(CHINCHILLA, x, y)
    own = minus_two_log_likelihood(np.log(found.predict(x) / y), True)
    assert score.aic == pytest.approx(own + 12) and score.bic == pytest.approx(own + 6 * np.log(50))
    assert TRUE.keys() == found.params.keys()
