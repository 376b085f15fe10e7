"""Published laws give the numbers their papers print."""

import pytest

from lm.errors import BadInput
from lm.laws.forms import LAWS
from lm.laws.published import KAPLAN_D, KAPLAN_N, PUBLISHED, published


def loss(name, n, d):
    known = published(name)
    return float(LAWS[known.law].predict(known.params, {"n": n, "d": d, "unique": d}))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_constant_has_a_place_in_its_law_and_a_source(name):
    known = PUBLISHED[name]
    assert set(known.params) == set(LAWS[known.law].names)
    assert "arXiv" in known.source
    assert 1.5 < loss(name, 280e9, 300e9) < 2.2


def test_chinchilla_numbers():
    assert round(loss("chinchilla_2022", 280e9, 300e9), 3) == 1.993  # Gopher
    assert round(loss("chinchilla_2022", 70e9, 1.4e12), 3) == 1.937  # Chinchilla


def test_rounding_of_the_printed_exponents_changes_the_exponent_of_compute():
    a = {n: LAWS["chinchilla"].exponents(PUBLISHED[n].params)["a"] for n in PUBLISHED if "ch" in n}
    assert a["chinchilla_2022"] == pytest.approx(0.4516, abs=1e-4)
    assert a["chinchilla_2022_tex"] == pytest.approx(0.4565, abs=1e-4)
    assert a["chinchilla_replication_2024"] == pytest.approx(0.5126, abs=1e-4)


def test_kaplan_one_variable_laws():
    for known in (KAPLAN_N, KAPLAN_D):
        assert set(known.params) == set(LAWS[known.law].names)
    at_1e9 = LAWS["kaplan_n"].predict(KAPLAN_N.params, {"n": 1e9})
    assert at_1e9 == pytest.approx((1e9 / 8.8e13) ** -0.076)
    at_1e10 = LAWS["kaplan_d"].predict(KAPLAN_D.params, {"d": 1e10})
    assert at_1e10 == pytest.approx((1e10 / 5.4e13) ** -0.095)


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match="did you mean chinchilla_2022"):
        published("chinchila_2022")
