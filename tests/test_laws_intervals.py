"""Delta and profile intervals, tests of published constants, and coverage on known laws."""

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws.bootstrap import bias_corrected, bootstrap
from lm.laws.delta import delta_interval, noise_of, published_test
from lm.laws.fit import fit
from lm.laws.forms import LAWS
from lm.laws.profile import flat_names, profile
from lm.laws.published import PUBLISHED
from lm.laws.quantity import quantity
from tests.published_tables import DECAY, TRUE, chinchilla_240, cloud, columns, isoflops, noisy

CHINCHILLA = LAWS["chinchilla"]
NAMES = ("E", "A", "B", "alpha", "beta", "a", "n_star")


def linear_problem():
    """Least squares of log y = log a + b log x: textbook intervals in closed form."""
    x = {"x": np.geomspace(1e6, 1e10, 30)}
    rng = np.random.default_rng(0)
    y = 8.0 * x["x"] ** -0.07 * np.exp(rng.normal(0, 0.02, 30))
    return x, y, fit(LAWS["power"], x, y, objective="squared_log")


def test_delta_and_profile_agree_with_the_textbook():
    from scipy.special import stdtrit

    x, y, found = linear_problem()
    X = np.stack([np.ones(30), np.log(x["x"])], axis=1)
    coefficients, rss = np.linalg.lstsq(X, np.log(y), rcond=None)[:2]
    assert found.params["b"] == pytest.approx(coefficients[1], rel=1e-10)
    inverse = np.linalg.inv(X.T @ X)
    residual = np.log(y) - X @ coefficients
    meat = X.T @ (X * residual[:, None] ** 2) * 30 / 28  # errors of different size allowed
    error = np.sqrt((inverse @ meat @ inverse)[1, 1])
    wanted = quantity(LAWS["power"], "b")
    for level in (80.0, 95.0):
        half = stdtrit(28, 0.5 + level / 200) * error
        textbook = (coefficients[1] - half, coefficients[1] + half)
        assert delta_interval(found, wanted)[level] == pytest.approx(textbook, rel=1e-8)
        # A straight line's profile is a parabola; only interpolation of its root is left.
        assert profile(found, wanted).intervals[level] == pytest.approx(textbook, rel=1e-3)
    assert rss.size


def test_profile_points_are_minima_for_their_value():
    x = cloud(100)
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y)
    curve = profile(found, quantity(CHINCHILLA, "alpha"))
    at = np.argmin(curve.rises)
    assert curve.values[at] == pytest.approx(found.params["alpha"], rel=1e-12)
    for k in (at - 3, at + 2):
        held = fit(CHINCHILLA, x, y, fixed={"alpha": curve.values[k]})
        assert held.sum - found.sum == pytest.approx(curve.rises[k], rel=1e-5)
    low, high = curve.intervals[80.0]
    wide = curve.intervals[95.0]
    assert wide[0] < low < found.params["alpha"] < high < wide[1]
    assert not curve.open


def test_optimum_as_a_quantity_is_the_closed_form():
    wanted = quantity(CHINCHILLA, "n_star", 5.76e23)
    n = float(wanted.value(TRUE))
    sizes = np.exp(np.linspace(np.log(n) - 0.01, np.log(n) + 0.01, 2001))
    losses = CHINCHILLA.predict(TRUE, {"n": sizes, "d": 5.76e23 / (6 * sizes)})
    assert sizes[np.argmin(losses)] == pytest.approx(n, rel=2e-5)
    d = float(quantity(CHINCHILLA, "d_star", 5.76e23).value(TRUE))
    assert 6 * n * d == pytest.approx(5.76e23, rel=1e-12)
    assert n == pytest.approx(32.2e9, rel=2e-3)


def test_a_quantity_must_exist():
    with pytest.raises(BadInput, match="gamma"):
        quantity(CHINCHILLA, "gamma")
    with pytest.raises(BadInput, match="'a'"):
        quantity(LAWS["kaplan_n"], "a")


def test_published_constants_are_tested():
    x, y = chinchilla_240()
    found = fit(CHINCHILLA, x, y)
    original = published_test(found, PUBLISHED["chinchilla_2022"].params)
    again = published_test(found, PUBLISHED["chinchilla_replication_2024"].params)
    assert original["p_value"] < 1e-10 and again["p_value"] > 0.9
    assert again["dimensions"] == 5 and 0 <= again["rise"] < 1e-6


def test_the_true_constants_are_rejected_as_often_as_they_should():
    x = cloud(200)
    p_values, partial = [], []
    for seed in range(30):
        found = fit(CHINCHILLA, x, noisy(x, 0.01, seed), objective="squared_log")
        p_values.append(published_test(found, TRUE)["p_value"])
        partial.append(published_test(found, {"alpha": TRUE["alpha"]})["p_value"])
    for values in (p_values, partial):
        assert 1 <= np.sum(np.array(values) < 0.2) <= 13
        assert 0.3 < np.mean(values) < 0.7


def test_a_flat_direction_is_open():
    """Fault: a likelihood that is flat in one direction is reported as a number."""
    table = columns("data_constrained_c4.csv")
    x = {"n": table["n_params"], "d": table["n_tokens"], "unique": table["unique_tokens"]}
    law = LAWS["data_constrained"]
    found = fit(law, x, table["loss"], fixed=DECAY)
    profiles = {n: profile(found, quantity(law, n)) for n in ("R_D", "R_N")}
    assert flat_names(profiles) == ["R_D"]
    low, high = profiles["R_D"].intervals[95.0]
    assert 3 < low < 15.4 and high is None
    assert None not in profiles["R_N"].intervals[95.0]


def test_a_flat_direction_of_a_generated_table_is_open():
    x = cloud(60)
    x["unique"] = x["d"] / np.tile([1.0, 2.0, 3.0], 20)  # few repeats: R_D hardly matters
    law = LAWS["data_constrained"]
    y = noisy(x, 0.02, params=DECAY | {"R_D": 50.0, "R_N": 5.0}, law="data_constrained")
    found = fit(law, x, y, fixed=DECAY | {"R_N": 5.0})
    curve = profile(found, quantity(law, "R_D"))
    assert curve.open and curve.intervals[95.0][1] is None


def test_an_interval_ends_at_the_range_of_its_parameter():
    x = {"x": np.geomspace(1e3, 1e5, 15)}
    y = noisy(x, 0.02, params={"a": 9.0, "b": -0.1, "E": 0.4}, law="power_floor")
    found = fit(LAWS["power_floor"], x, y, objective="squared_log")
    low, high = profile(found, quantity(LAWS["power_floor"], "E")).intervals[95.0]
    assert low == 0.0 and 0.4 < high < 5.0


def coverage(repetitions, methods, samples, seed=0):
    """Share of intervals that hold the truth: (method, level) -> array by NAMES."""
    x = isoflops(8, 50)
    largest = 10 * x["flops"].max()
    wanted = [quantity(CHINCHILLA, name, largest) for name in NAMES]
    truth = [float(q.value(TRUE)) for q in wanted]
    hits = {(m, level): np.zeros(len(NAMES)) for m in methods for level in (80.0, 95.0)}
    for r in range(repetitions):
        found = fit(CHINCHILLA, x, noisy(x, 0.01, 1000 * seed + r))
        drawn = bootstrap(found, samples, r) if "bootstrap" in methods else None
        noise = noise_of(found)
        for k, q in enumerate(wanted):
            ends = {}
            if drawn is not None:
                values = np.asarray(q.value(drawn.params))
                ends["bootstrap"] = {
                    level: bias_corrected(
                        values, float(q.value(found.params)), (50 - level / 2, 50 + level / 2)
                    )
                    for level in (80.0, 95.0)
                }
            if "delta" in methods:
                ends["delta"] = delta_interval(found, q, noise=noise)
            if "profile" in methods:
                ends["profile"] = profile(found, q, noise=noise).intervals
            for method, by_level in ends.items():
                for level, (low, high) in by_level.items():
                    inside = (low is None or low <= truth[k]) and (high is None or truth[k] <= high)
                    hits[method, level][k] += inside
    return {key: count / repetitions for key, count in hits.items()}


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    found = coverage(20, ("bootstrap", "delta"), 100)
    for (_, level), shares in found.items():
        assert np.all(shares >= level / 100 - 0.30)
        assert abs(shares.mean() - level / 100) < 0.14


@pytest.mark.bench
@pytest.mark.timeout(7200)
def test_coverage():
    """400 tables of 400 runs: 80 +- 6 and 95 +- 3.3 of 100 for every quantity and method."""
    found = coverage(400, ("bootstrap", "delta", "profile"), 500, seed=1)
    for (method, level), shares in found.items():
        print(method, level, dict(zip(NAMES, np.round(100 * shares, 1).tolist(), strict=True)))
        tolerance = 0.06 if level == 80.0 else 0.033
        assert np.all(np.abs(shares - level / 100) <= tolerance), (method, level)
