"""The end of a learning curve from its first part, and predictions marked by their reach."""

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws.bootstrap import bootstrap
from lm.laws.curve import binned, final_loss
from lm.laws.fit import fit
from lm.laws.forms import LAWS
from lm.laws.prediction import outside, predict
from tests.published_tables import TRUE, cloud, noisy


def learning_curve(steps=2000, sigma=0.01, seed=0):
    tokens = 4096.0 * np.arange(1, steps + 1)
    exact = 1.8 + 40 * tokens**-0.28
    warm_up = 6 * np.exp(-tokens / 4e4)
    return tokens, (exact + warm_up) * np.exp(np.random.default_rng(seed).normal(0, sigma, steps))


def test_final_loss_from_half_of_a_curve():
    tokens, loss = learning_curve()
    seen = tokens <= 0.5 * tokens[-1]
    end = final_loss(tokens[seen], loss[seen], tokens[-1])
    truth = 1.8 + 40 * tokens[-1] ** -0.28
    assert end.loss == pytest.approx(truth, rel=0.004)
    assert end.interval_95[0] < end.interval_80[0] < end.loss < end.interval_80[1]
    assert end.ahead == pytest.approx(2.0) and not end.warnings
    assert end.interval_95[1] - end.interval_95[0] < 0.05


def test_intervals_hold_the_end_about_as_often_as_they_say():
    inside = []
    for seed in range(15):
        tokens, loss = learning_curve(800, seed=seed)
        end = final_loss(tokens[:400], loss[:400], tokens[-1], skip=0.2, samples=60)
        truth = 1.8 + 40 * tokens[-1] ** -0.28
        inside.append(end.interval_80[0] <= truth <= end.interval_80[1])
    assert 8 <= sum(inside) <= 15


def test_far_ahead_is_said_and_mistakes_are_one_sentence():
    tokens, loss = learning_curve(400)
    far = final_loss(tokens, loss, 10 * tokens[-1], samples=30)
    assert any("beyond the curve" in w for w in far.warnings)
    with pytest.raises(BadInput, match="already reaches"):
        final_loss(tokens, loss, tokens[10])
    with pytest.raises(BadInput, match="separate points"):
        final_loss(tokens[:4], loss[:4], tokens[-1])
    with pytest.raises(BadInput, match="losses"):
        final_loss(tokens, loss[:5], 1e9)
    broken = np.where(np.arange(400) % 7 == 0, np.nan, loss)
    assert np.isfinite(final_loss(tokens, broken, 2 * tokens[-1], samples=30).loss)


def test_bins_are_geometric_means():
    x, y, counts = binned(np.array([1.0, 1.0, 100.0]), np.array([2.0, 8.0, 3.0]), 2)
    np.testing.assert_allclose(x, [1.0, 100.0])
    np.testing.assert_allclose(y, [4.0, 3.0])
    np.testing.assert_array_equal(counts, [2, 1])


def test_predictions_say_whether_they_extrapolate():
    x = cloud(150)
    found = fit(LAWS["chinchilla"], x, noisy(x, 0.01))
    samples = bootstrap(found, 200)
    middle = {"n": 1e9, "d": 2e10}
    corner = {"n": x["n"].max(), "d": x["d"].max()}  # each seen, never together
    beyond = {"n": 10 * x["n"].max(), "d": x["d"].max()}
    points = {r: np.array([middle[r], corner[r], beyond[r]]) for r in ("n", "d")}
    y = found.problem.y
    made = predict(found.law, found.params, samples.params, x, y, points)
    assert made.kind == ["interpolation", "extrapolation", "extrapolation"]
    assert made.factor[0] == 1.0 and made.factor[2] >= 10
    truth = LAWS["chinchilla"].predict(TRUE, points)
    np.testing.assert_allclose(made.loss, truth, rtol=0.03)
    width = made.law_quantiles[:, -1] - made.law_quantiles[:, 0]
    assert width[0] < width[2]
    assert np.all(np.diff(made.run_quantiles, axis=1) > 0)
    single = made.run_quantiles[0, -1] - made.run_quantiles[0, 0]
    assert single / truth[0] == pytest.approx(4 * 0.01, rel=0.25)  # 95 % of one run's scatter
    assert width[0] < 0.3 * single


def test_fitted_points_are_inside():
    x = {r: v for r, v in cloud(20).items() if r != "flops"}
    np.testing.assert_array_equal(outside(x, x), 1.0)
