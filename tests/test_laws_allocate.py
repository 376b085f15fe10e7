"""Optima against brute force, closed forms against the search, and the theorems they must obey."""

import numpy as np
import pytest

from lm.errors import BadInput
from lm.laws import allocate
from lm.laws.allocate import SIX_ND, SixND, at, cheapest, frontier, off_optimum, optimum
from lm.laws.forms import LAWS
from lm.laws.published import PUBLISHED
from lm.laws.shape import default_family
from lm.laws.surface import CORES, Surface, surface

LAWS_OF_ND = {
    "chinchilla": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
    "joint": {"E": 1.69, "a": 406.4, "c": 410.7, "b": -0.34, "d": -0.28},
    "kaplan_nd": PUBLISHED["kaplan_2020"].params,
    "overtraining": {"E": 1.5, "a": 60.0, "b": 90.0, "eta": 0.12},
    "data_constrained": PUBLISHED["data_constrained_2023"].params,
}
CHINCHILLA = LAWS_OF_ND["chinchilla"]


def searched():
    """The same count of FLOPs, but not the object for which the closed form is taken."""
    return SixND()


def samples(count=200, seed=0):
    """Parameters scattered around Chinchilla's: name -> (count,)."""
    rng = np.random.default_rng(seed)
    return {k: v * np.exp(0.03 * rng.normal(size=count)) for k, v in CHINCHILLA.items()}


def brute_force(f, low, high, points=200_001):
    x = np.linspace(low, high, points)
    return x[np.argmin(f(x))]


def test_every_law_of_n_and_d_can_be_planned_with():
    assert set(LAWS_OF_ND) == set(CORES)
    assert set(CORES) == {name for name, law in LAWS.items() if {"n", "d"} <= set(law.inputs)}


@pytest.mark.parametrize("law", LAWS_OF_ND)
def test_closed_form_equals_brute_force_and_the_search(law):
    s, c = surface(law, LAWS_OF_ND[law]), 3e21
    best = optimum(s, c)
    x = brute_force(lambda x: s.loss(np.exp(x), c / 6 / np.exp(x))[0], 10, 40)
    assert np.log(best.n[0]) == pytest.approx(x, abs=2e-4)
    found = optimum(s, c, searched())
    np.testing.assert_allclose(found.n, best.n, rtol=1e-9)
    np.testing.assert_allclose(found.loss, best.loss, rtol=1e-14)
    np.testing.assert_allclose(6 * best.n * best.d, c, rtol=1e-14)


@pytest.mark.parametrize("law", LAWS_OF_ND)
def test_core_is_the_law_and_tokens_inverts_it(law):
    s = surface(law, LAWS_OF_ND[law])
    n, d = np.array([[1e7, 1e9, 1e11]]), np.array([[3e9, 2e10, 1e13]])
    inside = s.core.A * n**-s.core.alpha + s.core.B * d**-s.core.beta
    np.testing.assert_allclose(s.core.rise(inside), s.loss(n, d), rtol=1e-13)
    np.testing.assert_allclose(s.tokens(n, s.loss(n, d)), d, rtol=1e-9)
    bisected = s._tokens_by_bisection(n, s.loss(n, d))
    np.testing.assert_allclose(bisected, d, rtol=1e-9)


@pytest.mark.parametrize("law", LAWS_OF_ND)
def test_optimum_grows_by_the_exponents_of_its_law(law):
    s = surface(law, LAWS_OF_ND[law])
    exponents = LAWS[law].exponents(LAWS_OF_ND[law])
    path = frontier(s, 1e20 * 2.0 ** np.arange(5))
    np.testing.assert_allclose(path.n[1:] / path.n[:-1], 2 ** exponents["a"], rtol=1e-12)
    np.testing.assert_allclose(path.d[1:] / path.d[:-1], 2 ** exponents["b"], rtol=1e-12)


def test_the_published_budget_of_gopher():
    s = surface("chinchilla", CHINCHILLA)
    for flops, n, loss in ((5.76e23, 32.2e9, 1.9307), (5.04e23, 30.3e9, 1.9357)):
        best = optimum(s, flops)
        assert best.n[0] == pytest.approx(n, rel=2e-3)
        assert best.loss[0] == pytest.approx(loss, abs=5e-5)
    assert at(s, 280e9, 300e9).loss[0] == pytest.approx(1.9933, abs=5e-5)


def test_envelope_theorem():
    """dL*/d log C equals the slope along D alone: at the optimum a change of N costs nothing."""
    s, c, h = surface("chinchilla", samples(20)), 1e21, 1e-4
    best = optimum(s, c)
    along = (optimum(s, c * np.exp(h)).loss - optimum(s, c * np.exp(-h)).loss) / (2 * h)
    n, d = best.n[:, None], best.d[:, None]
    alone = ((s.loss(n, d * np.exp(h)) - s.loss(n, d * np.exp(-h))) / (2 * h))[:, 0]
    np.testing.assert_allclose(along, alone, rtol=1e-6)


@pytest.mark.parametrize("unique", [None, 3e9])
@pytest.mark.parametrize("served", [0.0, 1e12])
@pytest.mark.parametrize("ledger", [SIX_ND, default_family()], ids=["6nd", "exact"])
def test_target_loss_and_budget_are_each_others_inverse(unique, served, ledger):
    s = surface("chinchilla", samples(5), unique)
    best = optimum(s, 2e21, ledger, served)
    back = cheapest(s, best.loss, ledger, served)
    np.testing.assert_allclose(back.n, best.n, rtol=1e-6)
    np.testing.assert_allclose(back.flops, 2e21, rtol=1e-10)
    np.testing.assert_allclose(best.flops, 2e21, rtol=1e-12)


@pytest.mark.parametrize("ledger", [searched(), default_family()], ids=["6nd", "exact"])
def test_search_equals_brute_force_where_no_closed_form_exists(ledger):
    s, c, served = surface("chinchilla", CHINCHILLA, 1e9), 1e21, 1e11

    def loss(x):
        n, train, serve = ledger.counts(x)
        return s.loss(n, np.where(c > serve * served, c - serve * served, np.nan) / train)[0]

    best = optimum(s, c, ledger, served)
    low, high = ledger.log_size(np.array([1e8, 1e10]))
    x = brute_force(lambda x: np.nan_to_num(loss(x), nan=np.inf), low, high)
    assert ledger.log_size(best.n)[0] == pytest.approx(x, abs=2e-4)
    assert best.loss[0] <= np.nanmin(loss(np.linspace(low, high, 10_001))) + 1e-15


def test_served_tokens_make_models_smaller_and_train_them_longer():
    s = surface("chinchilla", samples(50))
    path = [optimum(s, 1e21, SIX_ND, served) for served in (0.0, 1e10, 1e12, 1e13)]
    for less, more in zip(path, path[1:], strict=False):
        assert (more.n < less.n).all() and (more.d > less.d).all()
        assert (more.loss > less.loss).all()  # part of the budget now serves
    # At the loss of the last one, any other model costs more over its life.
    last = path[-1]
    for factor in (0.8, 1.25):
        n = last.n * factor
        d = s.tokens(n[:, None], last.loss[:, None])[:, 0]
        assert (at(s, n, d, SIX_ND, 1e13).flops > last.flops).all()


def test_unique_tokens_without_end_change_nothing_and_few_hurt():
    free = optimum(surface("chinchilla", samples(20)), 1e21)
    plenty = optimum(surface("chinchilla", samples(20), 1e15), 1e21)
    np.testing.assert_allclose(plenty.n, free.n, rtol=1e-9)
    np.testing.assert_allclose(plenty.loss, free.loss, rtol=1e-13)
    few = [optimum(surface("chinchilla", samples(20), u), 1e21) for u in (3e10, 1e10, 1e9)]
    losses = np.stack([free.loss, *(o.loss for o in few)])
    assert (np.diff(losses, axis=0) > 0).all()
    assert (few[0].n < free.n).all()  # repeats help more than excess parameters at first


def test_repeated_data_has_a_floor_of_its_own():
    plain, scarce = surface("chinchilla", CHINCHILLA), surface("chinchilla", CHINCHILLA, 1e9)
    assert plain.floor()[0] == pytest.approx(1.69, abs=1e-12)
    assert scarce.floor()[0] > 2.2
    assert np.isnan(cheapest(scarce, scarce.floor()[0] - 1e-3).n[0])
    assert np.isfinite(cheapest(scarce, scarce.floor()[0] + 1e-2).n[0])


def test_off_the_optimum_costs_what_the_surface_says():
    s = surface("chinchilla", CHINCHILLA)
    best = optimum(s, 1e21)
    off = off_optimum(s, best, np.array([0.25, 1.0, 4.0]))
    np.testing.assert_allclose(6 * off["n"] * off["d"], 1e21, rtol=1e-12)
    assert off["loss"][0, 1] == pytest.approx(best.loss[0], rel=1e-14)
    assert (off["loss"][0, [0, 2]] > best.loss[0]).all()
    assert off["flops_ratio"][0, 1] == pytest.approx(1.0, rel=1e-10)
    needed = off["flops_ratio"][0, 2] * 1e21  # spent on that size it does reach the loss
    assert s.loss(off["n"][0, 2], needed / (6 * off["n"][0, 2]))[0, 0] == pytest.approx(
        best.loss[0]
    )


def test_exact_counts_are_kept_on_the_budget():
    family = default_family()
    best = optimum(surface("chinchilla", CHINCHILLA), 1e20, family)
    n, train, _ = family.counts(family.log_size(best.n))
    np.testing.assert_allclose(n, best.n, rtol=1e-12)
    np.testing.assert_allclose(train * best.d, 1e20, rtol=1e-12)
    assert 0.9 < train[0] / (6 * n[0]) < 1.1


def test_frontier_bands_hold_the_point_and_every_sample_its_own_optimum():
    point, spread = surface("chinchilla", CHINCHILLA), surface("chinchilla", samples())
    budgets = np.array([1e18, 1e21, 1e24])
    path, cloud = frontier(point, budgets), frontier(spread, budgets)
    assert cloud.n.shape == (3, 200)
    low, high = np.percentile(cloud.n, [10, 90], axis=1)
    assert ((low < path.n[:, 0]) & (path.n[:, 0] < high)).all()
    alone = surface("chinchilla", {k: v[7] for k, v in samples().items()})
    np.testing.assert_allclose(cloud.loss[1, 7], optimum(alone, 1e21).loss[0], rtol=1e-14)


def test_parameters_without_an_optimum_give_nan_and_never_a_number():
    bad = {**CHINCHILLA, "alpha": np.array([0.34, 0.0, -0.1])}
    bad = {k: np.broadcast_to(v, 3) for k, v in bad.items()}
    for ledger in (SIX_ND, searched()):
        best = optimum(surface("chinchilla", bad), 1e21, ledger)
        assert (
            np.isfinite(best.n[0]) and np.isnan(best.n[1:]).all() and np.isnan(best.loss[1:]).all()
        )


def test_a_new_law_is_planned_with_by_search_alone(monkeypatch):
    monkeypatch.setattr("lm.laws.surface.CORES", {})
    s = surface("chinchilla", CHINCHILLA)
    assert s.core is None
    known = allocate.optimum(Surface(s.law, s.params), 1e21)
    assert known.n[0] == pytest.approx(3.06e10 * (1e21 / 5.2e23) ** 0.4516, rel=0.02)
    assert cheapest(s, known.loss).n[0] == pytest.approx(known.n[0], rel=1e-6)


@pytest.mark.parametrize(
    ("law", "unique", "says"),
    [("power", None, "does not give a loss from N and D"), ("nope", None, "does not give"),
     ("kaplan_nd", 1e9, "--unique_tokens needs")],
)  # fmt: skip
def test_laws_that_cannot_be_planned_with_are_refused(law, unique, says):
    params = LAWS_OF_ND.get(law, {"a": 1.0, "b": -0.1})
    with pytest.raises(BadInput, match=says):
        surface(law, params, unique)
    with pytest.raises(BadInput, match="lacks its parameter beta"):
        surface("chinchilla", {k: v for k, v in CHINCHILLA.items() if k != "beta"})
