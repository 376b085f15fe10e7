"""Every law against its printed formula, in new units, and over an axis of parameters."""

import math

import numpy as np
import pytest

from lm.laws.forms import LAWS
from lm.laws.forms.bnsl import bnsl
from lm.laws.forms.data_constrained import optimal_size

# law -> parameters, one input point, and the value worked out by hand from the paper's formula.
ROWS = {
    "power": ({"a": 8.0, "b": -0.5}, {"x": 16.0}, 2.0),
    "power_floor": ({"a": 8.0, "b": -0.5, "E": 1.5}, {"x": 16.0}, 3.5),
    "kaplan_n": ({"N_c": 8.8e13, "alpha_N": 0.5}, {"n": 8.8e9}, 100.0),
    "kaplan_d": ({"D_c": 5.4e13, "alpha_D": 0.25}, {"d": 5.4e9}, 10.0),
    "kaplan_nd": (
        {"N_c": 4e4, "D_c": 5e3, "alpha_N": 0.5, "alpha_D": 0.5},
        {"n": 1e4, "d": 1e3},
        3.0,
    ),
    "joint": ({"a": 8.0, "b": -0.5, "c": 9.0, "d": -0.5, "E": 1.0}, {"n": 16.0, "d": 9.0}, 6.0),
    "chinchilla": (
        {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
        {"n": 280e9, "d": 300e9},
        1.69 + 406.4 / 280e9**0.34 + 410.7 / 300e9**0.28,
    ),
    "three_phase": ({"E": 1.0, "L_0": 5.0, "x_c": 10.0, "alpha": 2.0}, {"x": 10.0}, 2.0),
    "bnsl": (
        {"a": 0.5, "b": 2.0, "c0": 0.5, "c1": 3.0, "d1": 4.0, "f1": 0.5},
        {"x": 4.0},
        0.5 + 2.0 / 2.0 * 2.0**-1.5,
    ),
    "data_constrained": (
        {"E": 1.0, "A": 4.0, "B": 4.0, "alpha": 0.5, "beta": 0.5, "R_D": 2.0, "R_N": 3.0},
        {"n": 200.0, "d": 300.0, "unique": 100.0},  # N_opt(U) = U here
        1.0
        + 4.0 / math.sqrt(100 + 300 * (1 - math.exp(-1 / 3)))
        + 4.0 / math.sqrt(100 + 200 * (1 - math.exp(-1.0))),
    ),
    "overtraining": (
        {"E": 1.0, "a": 3.0, "b": 5.0, "eta": 0.5},
        {"n": 10.0, "d": 40.0},
        1.0 + (3.0 * 2.0 + 5.0 / 2.0) / math.sqrt(2400.0),
    ),
    "accuracy_sigmoid": ({"a": 0.5, "k": 4.0, "L_0": 2.0, "b": 0.25}, {"loss": 2.0}, 0.5),
    "accuracy_exponential": (
        {"epsilon": 0.75, "k": 2.0, "gamma": 1.0},
        {"loss": math.log(8.0)},
        0.5,
    ),
}


def test_every_law_has_a_row():
    assert ROWS.keys() == LAWS.keys()
    for name, law in LAWS.items():
        assert law.name == name
        assert set(ROWS[name][0]) == set(law.names)
        assert set(law.log) | set(law.bounds) | set(law.linear) <= set(law.names)


@pytest.mark.parametrize("name", ROWS)
def test_value_by_hand(name):
    params, x, value = ROWS[name]
    assert LAWS[name].predict(params, x) == pytest.approx(value, rel=1e-14)


def test_published_chinchilla_values():
    params = ROWS["chinchilla"][0]
    law = LAWS["chinchilla"]
    assert law.predict(params, {"n": 280e9, "d": 300e9}) == pytest.approx(1.993, abs=5e-4)
    assert law.predict(params, {"n": 70e9, "d": 1.4e12}) == pytest.approx(1.937, abs=5e-4)


@pytest.mark.parametrize("name", ROWS)
def test_same_curve_in_other_units(name):
    params, x, value = ROWS[name]
    factor = {role: 3.7 if role == "n" else 2.9 for role in x}
    moved = LAWS[name].rescale(params, factor)
    there = {role: x[role] * factor[role] for role in x}
    assert LAWS[name].predict(moved, there) == pytest.approx(value, rel=1e-13)
    back = LAWS[name].rescale(moved, {role: 1 / f for role, f in factor.items()})
    assert back == pytest.approx(params, rel=1e-13)


@pytest.mark.parametrize("name", ROWS)
def test_shape_is_parameters_then_inputs(name):
    params, x, value = ROWS[name]
    many = {key: np.full(4, number) for key, number in params.items()}
    points = {role: np.full((2, 3), number) for role, number in x.items()}
    predicted = LAWS[name].predict(many, points)
    assert predicted.shape == (4, 2, 3)
    assert predicted.dtype == np.float64
    np.testing.assert_allclose(predicted, value, rtol=1e-14)


@pytest.mark.parametrize("name", ["chinchilla", "joint", "kaplan_nd", "overtraining"])
def test_exponents_are_those_of_the_numerical_optimum(name):
    law, params = LAWS[name], ROWS[name][0]
    log_n = np.linspace(-12, 25, 400_001)

    def best(flops):
        n = np.exp(log_n)
        return n[np.argmin(law.predict(params, {"n": n, "d": flops / (6 * n)}))]

    exponents = law.exponents(params)
    measured = np.log(best(1e8) / best(1e6)) / np.log(1e2)
    assert exponents["a"] == pytest.approx(measured, abs=2e-3)
    assert exponents["a"] + exponents["b"] == pytest.approx(1.0, abs=1e-15)


def test_laws_without_allocation_have_no_exponents():
    assert LAWS["power"].exponents(ROWS["power"][0]) is None


def test_joint_is_chinchilla_in_other_letters():
    joint = {"a": 400.0, "b": -0.34, "c": 410.0, "d": -0.28, "E": 1.7}
    chinchilla = {"A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28, "E": 1.7}
    x = {"n": np.geomspace(1e6, 1e11, 7), "d": np.geomspace(1e12, 1e8, 7)}
    np.testing.assert_allclose(
        LAWS["joint"].predict(joint, x), LAWS["chinchilla"].predict(chinchilla, x), rtol=1e-15
    )


def test_broken_law_takes_any_number_of_breaks_and_stays_finite():
    three = bnsl(3)
    assert three.names == ("a", "b", "c0", "c1", "d1", "f1", "c2", "d2", "f2", "c3", "d3", "f3")
    params = dict.fromkeys(three.names, 0.0) | {"a": 1.0, "b": 2.0, "c0": 0.3}
    params |= {f"d{i}": 10.0**i for i in (1, 2, 3)} | {f"f{i}": 1e-4 for i in (1, 2, 3)}
    x = {"x": np.geomspace(1, 1e8, 9)}
    expected = 1.0 + 2.0 * x["x"] ** -0.3  # breaks of zero change of slope
    np.testing.assert_allclose(three.predict(params, x), expected, rtol=1e-13)
    bent = three.predict(params | {"c2": 1.0}, x)
    assert np.all(np.isfinite(bent))
    # Above a sharp break the slope is c0 + c2.
    np.testing.assert_allclose(bent[6] - 1.0, 2.0 * 1e6**-0.3 * (1e6 / 1e2) ** -1.0, rtol=1e-10)


def test_data_constrained_limits():
    params = ROWS["data_constrained"][0]
    law = LAWS["data_constrained"]
    x = {"n": np.array([3e3, 2e5]), "d": np.array([4e4, 8e4]), "unique": np.array([1e4, 2e4])}
    plain = LAWS["chinchilla"].predict(params, x)
    endless = law.predict(params | {"R_D": 1e20, "R_N": 1e20}, x)
    np.testing.assert_allclose(endless, plain, rtol=1e-12)
    once = dict(x, unique=x["d"] * 5)
    small = law.predict(params | {"R_N": 1e20}, once)
    np.testing.assert_allclose(small, LAWS["chinchilla"].predict(params, once), rtol=1e-12)
    # N_opt(U): the size for which U tokens minimise the single-epoch law at C = 6 N U.
    n = np.exp(np.linspace(0, 20, 200_001))
    compute = 6.0 * optimal_size(params, 1e4) * 1e4
    losses = LAWS["chinchilla"].predict(params, {"n": n, "d": compute / (6 * n)})
    assert n[np.argmin(losses)] == pytest.approx(1e4, rel=1e-3)


def test_three_phases():
    params = {"E": 1.0, "L_0": 5.0, "x_c": 1e4, "alpha": 0.5}
    law = LAWS["three_phase"]
    start, end = law.predict(params, {"x": np.array([1e-3, 1e20])})
    assert start == pytest.approx(5.0, rel=1e-6)
    assert end == pytest.approx(1.0, rel=1e-6)
    middle = law.predict(params, {"x": np.array([1e9, 4e9])}) - 1.0
    assert middle[0] / middle[1] == pytest.approx(2.0, rel=1e-4)
