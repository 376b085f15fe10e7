"""Fits: published minima to the last digit, exact recovery, invariance, constraints, statuses."""

import itertools

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws.fit import fit, stages
from lm.laws.forms import LAWS
from lm.laws.forms.bnsl import bnsl
from lm.laws.objective import CORNER, objective
from tests.published_tables import DECAY, TRUE, chinchilla_240, cloud, columns, isoflops, noisy

CHINCHILLA = LAWS["chinchilla"]


def natural_gradient(x, y, p, delta):
    """Huber objective and relative gradient by natural parameters, in plain NumPy."""
    size, data = p["A"] * x["n"] ** -p["alpha"], p["B"] * x["d"] ** -p["beta"]
    loss = p["E"] + size + data
    r = np.log(loss) - np.log(y)
    pull = np.clip(r, -delta, delta) / loss
    terms = pull * np.stack(
        [
            np.ones_like(y),
            size / p["A"],
            data / p["B"],
            -size * np.log(x["n"]),
            -data * np.log(x["d"]),
        ]
    )
    value = np.where(np.abs(r) <= delta, r**2 / 2, delta * (np.abs(r) - delta / 2)).sum()
    return value, np.abs(terms.sum(1)) / np.abs(terms).sum(1)


def test_published_replication():
    x, y = chinchilla_240()
    found = fit(CHINCHILLA, x, y)
    value, gradient = natural_gradient(x, y, found.params, 1e-3)
    assert value <= 1.0182740179e-3
    assert found.sum == pytest.approx(value, rel=1e-12)
    assert gradient.max() <= 1e-12 and found.gradient <= 1e-12
    expected = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
    for name, number in expected.items():
        assert found.params[name] == pytest.approx(number, rel=2e-6)
    assert found.status == "converged" and not found.warnings
    assert found.agreeing == found.tried >= 16


def test_generated_twin_of_the_replication():
    x = cloud()
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y)
    value, gradient = natural_gradient(x, y, found.params, 1e-3)
    assert found.sum == pytest.approx(value, rel=1e-11)
    assert gradient.max() <= 1e-12
    assert found.status == "converged"
    # No other point nearby is lower.
    for name, move in itertools.product(TRUE, (-1e-3, 1e-3)):
        other = found.params | {name: found.params[name] * (1 + move)}
        assert natural_gradient(x, y, other, 1e-3)[0] > value


def test_all_245_rows():
    table = columns("chinchilla_epoch.csv")
    found = fit(CHINCHILLA, {"n": table["n_params"], "d": table["n_tokens"]}, table["loss"])
    assert found.exponents["a"] == pytest.approx(0.5646, abs=5e-5)


@pytest.mark.parametrize("scale", [1 / 240, 1e6, 1e-6])
def test_same_minimum_under_sum_mean_and_any_scale(scale):
    """Fault: an optimizer that stops on an absolute tolerance of a small mean."""
    x = cloud()
    y = noisy(x, 0.01)
    one, scaled = fit(CHINCHILLA, x, y), fit(CHINCHILLA, x, y, weights=np.full(240, scale))
    assert scaled.params == pytest.approx(one.params, rel=1e-11)
    assert scaled.sum == pytest.approx(one.sum * scale, rel=1e-11)
    assert one.mean == pytest.approx(one.sum / 240, rel=1e-14)


@pytest.mark.parametrize("unit", [1.0, 1e9])
@pytest.mark.parametrize("table", [cloud, isoflops])
@pytest.mark.parametrize("exponents", [(0.34, 0.28), (0.31, 0.31), (0.465, 0.155)])
def test_noise_free_recovery(exponents, table, unit):
    true = TRUE | dict(zip(("alpha", "beta"), exponents, strict=True))
    x = table()
    y = CHINCHILLA.predict(true, x)
    in_unit = {role: v / unit for role, v in x.items()}
    found = fit(CHINCHILLA, in_unit, y)
    expected = CHINCHILLA.rescale(true, {"n": 1 / unit, "d": 1 / unit})
    assert found.params == pytest.approx(expected, rel=1e-11)
    assert found.status == "converged"


ONE = {"x": np.geomspace(3e5, 4e9, 40)}
RECOVER = {
    "power": ({"a": 8.0, "b": -0.07}, ONE),
    "power_floor": ({"a": 80.0, "b": -0.27, "E": 1.5}, ONE),
    "kaplan_n": ({"N_c": 8.8e13, "alpha_N": 0.076}, {"n": ONE["x"]}),
    "kaplan_d": ({"D_c": 5.4e13, "alpha_D": 0.095}, {"d": ONE["x"]}),
    "kaplan_nd": (
        {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103},
        cloud(60),
    ),
    "joint": ({"a": 406.4, "b": -0.34, "c": 410.7, "d": -0.28, "E": 1.69}, cloud(60)),
    "chinchilla": (TRUE, cloud(60)),
    "three_phase": ({"E": 1.2, "L_0": 9.2, "x_c": 3e6, "alpha": 0.4}, ONE),
    "bnsl": ({"a": 0.6, "b": 9.0, "c0": 0.1, "c1": 0.4, "d1": 2e7, "f1": 0.3}, ONE),
    "data_constrained": (
        DECAY | {"R_D": 15.0, "R_N": 5.0, "beta": 0.4},
        cloud(80) | {"unique": cloud(80)["d"] / np.tile([1.0, 3.0, 10.0, 40.0], 20)},
    ),
    "overtraining": ({"E": 1.7, "a": 140.0, "b": 200.0, "eta": 0.14}, cloud(60)),
    "accuracy_sigmoid": (
        {"a": 0.6, "k": 5.0, "L_0": 2.4, "b": 0.25},
        {"loss": np.linspace(1.5, 4.0, 30)},
    ),
    "accuracy_exponential": (
        {"epsilon": 0.75, "k": 4.0, "gamma": 1.1},
        {"loss": np.linspace(1.9, 4.0, 30)},
    ),
}


@pytest.mark.parametrize("name", RECOVER)
def test_every_law_recovers_its_parameters(name):
    true, x = RECOVER[name]
    law = LAWS[name]
    found = fit(law, x, law.predict(true, x), objective="squared_log")
    assert found.params == pytest.approx(true, rel=1e-6, abs=1e-9)
    assert found.status == "converged"
    np.testing.assert_allclose(found.residuals(), 0, atol=1e-12)


def test_accuracies_may_be_zero():
    law = LAWS["accuracy_sigmoid"]
    loss = np.linspace(1.5, 4.0, 40)
    true = {"a": 0.9, "k": 6.0, "L_0": 2.2, "b": 0.0}
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    y = np.round(np.clip(law.predict(true, {"loss": loss}) + noise, 0, 1), 2)
    assert np.any(y == 0)
    found = fit(law, {"loss": loss}, y, delta=0.01)
    assert found.status == "converged"
    assert found.params == pytest.approx(true, rel=0.1, abs=0.02)


def test_every_law_has_a_recovery():
    assert RECOVER.keys() == LAWS.keys()


def test_published_broken_law():
    table = columns("bnsl_4digit_addition.csv")
    first = table["split"] == "fit"
    x, y = {"x": table["dataset_size"]}, table["loss"]
    found = fit(bnsl(1), {"x": x["x"][first]}, y[first], objective="squared_log1p")
    error = np.log(found.predict(x)) - np.log(y)
    assert np.sqrt(np.mean(error[first] ** 2)) <= 5.9849e-4
    assert np.sqrt(np.mean(error[~first] ** 2)) == pytest.approx(0.0109, abs=1e-4)
    assert found.status == "converged" and found.agreeing > 5


def test_published_data_constrained_law():
    table = columns("data_constrained_c4.csv")
    x = {"n": table["n_params"], "d": table["n_tokens"], "unique": table["unique_tokens"]}
    found = fit(LAWS["data_constrained"], x, table["loss"], fixed=DECAY)
    assert found.sum <= 1.58046625e-2 + 1e-9
    assert found.params["R_D"] == pytest.approx(95.4, abs=0.05)
    assert found.params["R_N"] == pytest.approx(1.706, abs=5e-4)
    assert {n: found.params[n] for n in DECAY} == DECAY
    far = found.problem.coordinates.theta({n: np.array([v]) for n, v in found.params.items()})
    far = np.array([[np.log(1e20), far[0, 1]], [far[0, 0], np.log(1e20)]])
    point = found.problem(far, np.arange(2))
    assert np.all(np.isfinite(point.f)) and np.all(np.isfinite(point.g))


def test_two_breaks_are_found_in_a_curve_with_double_descent():
    law = bnsl(2)
    true = dict(a=0.3, b=2.0, c0=0.3, c1=-0.9, d1=10.0, f1=0.1, c2=1.2, d2=60.0, f2=0.15)
    x = {"x": np.geomspace(0.5, 5e3, 60)}
    y = law.predict(true, x)
    assert np.any(np.diff(y) > 0)
    found = fit(law, x, y, objective="squared_log")
    np.testing.assert_allclose(found.predict(x), y, rtol=1e-6)


@pytest.mark.parametrize("name", ["squared_log", "squared", "squared_log1p", "huber"])
def test_objectives_are_what_they_say(name):
    x = cloud(80)
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y, objective=name, delta=0.004)
    p = found.predict(x)
    r = np.log(p / y)
    by_hand = {
        "squared_log": np.sum(r**2),
        "squared": np.sum((p - y) ** 2),
        "squared_log1p": np.sum((np.log1p(p) - np.log1p(y)) ** 2),
        "huber": np.sum(np.where(abs(r) < 0.004, r**2 / 2, 0.004 * (abs(r) - 0.002))),
    }
    assert found.sum == pytest.approx(by_hand[name], rel=1e-10)
    assert found.gradient < 1e-12


def test_absolute_passes_through_as_many_points_as_parameters():
    x = cloud(60)
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y, objective="absolute")
    residual = np.sort(np.abs(np.log(found.predict(x) / y)))
    assert residual[4] < 10 * CORNER < residual[5]
    assert found.sum == pytest.approx(residual.sum(), rel=1e-5)


def test_asymmetric_leaves_tau_of_the_runs_below():
    x = cloud(200)
    y = noisy(x, 0.01)
    for tau in (0.2, 0.7):
        found = fit(CHINCHILLA, x, y, objective="asymmetric", delta=1e-5, tau=tau)
        assert np.mean(y < found.predict(x)) == pytest.approx(tau, abs=0.04)


def test_weights_count_rows():
    x, y = cloud(40), noisy(cloud(40), 0.01)
    twice = np.concatenate([np.arange(40), np.arange(10)])
    doubled = fit(CHINCHILLA, {r: v[twice] for r, v in x.items()}, y[twice])
    weights = np.where(np.arange(40) < 10, 2.0, 1.0)
    assert fit(CHINCHILLA, x, y, weights=weights).params == pytest.approx(doubled.params, rel=1e-8)


def test_fixed_tied_and_bounded_parameters():
    x = cloud(100)
    y = noisy(x, 0.003)
    free = fit(CHINCHILLA, x, y)
    assert fit(CHINCHILLA, x, y, fixed={"E": 1.7}).params["E"] == 1.7
    held = fit(CHINCHILLA, x, y, fixed={"A": 406.4, "alpha": 0.34})
    assert held.params["A"] == 406.4 and held.params["alpha"] == 0.34
    assert held.status == "converged" and held.sum > free.sum
    # Coefficients held while their exponents move: only true in the table's own units.
    only = fit(CHINCHILLA, x, y, fixed={"A": 406.4})
    assert only.params["A"] == 406.4 and free.sum < only.sum < held.sum
    tied = fit(CHINCHILLA, x, y, tied={"beta": "alpha"})
    assert tied.params["alpha"] == tied.params["beta"] and tied.sum > free.sum
    bounded = fit(CHINCHILLA, x, y, bounds={"E": (1.8, 2.0)})
    assert bounded.params["E"] == 1.8
    assert bounded.status == "at_bound" and "E" in bounded.warnings[0]
    held_at = fit(CHINCHILLA, x, y, fixed={"E": 1.8})
    assert bounded.sum == pytest.approx(held_at.sum, rel=1e-9)


@pytest.mark.parametrize("same, gone", [("n", {"E", "A", "alpha"}), ("d", {"E", "B", "beta"})])
def test_runs_of_one_size_name_what_is_not_identified(same, gone):
    x = cloud(60)
    x[same] = np.full(60, 1e9)
    found = fit(CHINCHILLA, x, noisy(x, 0.01))
    assert found.status == "flat"
    (message,) = found.warnings
    named = set(message.split(": ")[1].replace(",", "").split())
    assert named == gone and f"same {same}" in message
    assert all(np.isfinite(v) for v in found.params.values())


def test_a_floor_that_the_table_pushes_to_zero_is_at_bound():
    x = {"x": np.geomspace(1e3, 1e6, 20)}
    y = 5.0 * x["x"] ** -0.1 - 0.3
    found = fit(LAWS["power_floor"], x, y)
    assert found.status == "at_bound" and found.params["E"] == 0.0 and "E" in found.warnings[0]


def test_a_rising_curve_is_no_power_law():
    x = {"x": np.geomspace(1e3, 1e6, 20)}
    found = fit(LAWS["power"], x, 1 + 1e-7 * x["x"])
    assert found.status == "at_bound" and found.params["b"] == 0.0


def test_starts_are_reported():
    x = cloud()
    found = fit(CHINCHILLA, x, noisy(x, 0.01))
    assert found.objectives.shape == (found.tried,)
    best = np.isclose(found.objectives, found.sum, rtol=1e-7)
    assert found.agreeing == best.sum() > found.tried / 2


def test_stages_narrow_to_the_objective():
    goal = objective("huber", 1e-3)
    widths = [stage.delta for stage in stages(goal)]
    assert widths[-1] == 1e-3 and widths == sorted(widths, reverse=True)
    far = np.array([0.5])
    for stage in stages(goal):  # the same pull far out
        np.testing.assert_allclose(stage.slopes(far)[0], 1e-3, rtol=1e-12)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(y=np.array([3.0, 2.0])), "2 usable rows"),
        (dict(y=np.full(40, -1.0)), "must be positive"),
        (dict(x={"n": np.full(40, np.nan)}), "n must be positive"),
        (dict(objective="hubber"), "hubber"),
        (dict(delta=0.0), "delta"),
        (dict(objective="asymmetric", tau=1.0), "tau"),
        (dict(fixed={"gamma": 1.0}), "gamma"),
        (dict(fixed={"A": -1.0}), "A is fixed"),
        (dict(tied={"A": "alpha"}), "cannot be tied"),
        (dict(tied={"alpha": "alpha"}), "twice"),
        (dict(bounds={"E": (2.0, 1.0)}), "bounds of E"),
        (dict(fixed=TRUE), "every parameter"),
        (dict(weights=np.zeros(40)), "weights"),
    ],
)
def test_bad_input_is_one_sentence(change, words):
    x = {r: v for r, v in cloud(40).items() if r != "flops"}
    settings = {"x": x, "y": noisy(x, 0.01)} | change
    settings["x"] = {**x, **settings["x"]}
    rows = settings["y"].size
    settings["x"] = {r: v[:rows] for r, v in settings["x"].items()}
    with pytest.raises(BadInput, match=words):
        fit(CHINCHILLA, **settings)
