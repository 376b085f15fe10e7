"""Plans: the right numbers, intervals that come from the samples, plain refusals."""

import json
import math

import numpy as np
import pytest

from lm.config import ModelConfig
from lm.errors import BadInput
from lm.laws.law_file import read_law
from lm.laws.plan import Question, banded, make_plan
from lm.laws.plan_frontier import frontier_plan
from lm.laws.plan_text import amount, plan_text
from lm.laws.shape import Family, default_family
from lm.laws.surface import surface

LAW = {"E": 1.82, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
TINY = Family(ModelConfig(vocab_size=256, d_model=64, n_layers=4, n_heads=4, max_length=128), 128)


@pytest.fixture
def fit_folder(tmp_path):
    """A folder as experiments.fit leaves it, with 400 samples scattered by about 1 %."""
    rng = np.random.default_rng(0)
    samples = {k: v * np.exp(0.01 * rng.normal(size=400)) for k, v in LAW.items()}
    content = {"law": "chinchilla", "method": "parametric", "params": LAW, "n_runs": 60,
               "status": "converged", "warnings": [], "command": "fit --runs=runs.csv"}  # fmt: skip
    (tmp_path / "law.json").write_text(json.dumps(content))
    # Columns in another order than the law names them.
    names = sorted(LAW)
    rows = [",".join(repr(float(samples[k][i])) for k in names) for i in range(400)]
    (tmp_path / "bootstrap.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    return tmp_path


def plan(known, convention="6nd", family=None, **question):
    return make_plan(known, Question(**question), family or default_family(), convention)


@pytest.mark.parametrize(
    ("flops", "n", "loss"), [(5.76e23, 32.2e9, 1.9307), (5.04e23, 30.3e9, 1.9357)]
)
def test_published_budget(flops, n, loss):
    p = plan(read_law("chinchilla_2022"), flops=flops)
    assert p["law"] == "chinchilla_2022" and p["convention"] == "6nd"
    assert p["flops"]["value"] == flops
    assert p["n"]["value"] == pytest.approx(n, rel=2e-3)
    assert p["loss"]["value"] == pytest.approx(loss, abs=5e-5)
    assert p["tokens_per_param"]["value"] == pytest.approx(p["d"]["value"] / p["n"]["value"])
    for key in ("flops", "n", "d", "tokens_per_param", "loss"):
        assert p[key].keys() == {"value", "interval_80", "interval_95"}
        assert p[key]["interval_80"] is None and p[key]["interval_95"] is None
    assert any("no intervals" in w for w in p["warnings"])
    json.dumps(p, allow_nan=False)


def test_doubling_the_budget_four_times_follows_the_exponents(fit_folder):
    for known in (read_law("chinchilla_2022"), read_law(str(fit_folder))):
        p = plan(known, flops=5.76e23)
        a, b = p["exponents"]["a"]["value"], p["exponents"]["b"]["value"]
        assert [row["flops"] / 5.76e23 for row in p["doublings"]] == [2, 4, 8, 16]
        for k, row in enumerate(p["doublings"], 1):
            assert row["n"]["value"] == pytest.approx(p["n"]["value"] * 2 ** (k * a), rel=1e-12)
            assert row["d"]["value"] == pytest.approx(p["d"]["value"] * 2 ** (k * b), rel=1e-12)
            assert (row["loss"]["interval_80"] is None) == (known.samples is None)
        assert amount(p["doublings"][3]["n"]["value"]) in plan_text(p)


@pytest.mark.parametrize(("n", "d", "loss"), [(280e9, 300e9, 1.9933), (70e9, 1.4e12, 1.9366)])
def test_a_point_and_what_its_flops_would_have_bought(n, d, loss):
    p = plan(read_law("chinchilla_2022"), n=n, d=d)
    assert (p["n"]["value"], p["d"]["value"]) == (n, d)
    assert p["loss"]["value"] == pytest.approx(loss, abs=5e-5)
    best = plan(read_law("chinchilla_2022"), flops=6 * n * d)
    assert p["compute_optimal"]["n"]["value"] == pytest.approx(best["n"]["value"], rel=1e-12)
    share = p["compute_optimal"]["flops_ratio_for_same_loss"]["value"]
    cheaper = plan(read_law("chinchilla_2022"), loss=p["loss"]["value"])
    assert cheaper["flops"]["value"] == pytest.approx(share * 6 * n * d, rel=1e-9)
    assert share < 1
    intervals = [line.split()[-1] for line in plan_text(p).splitlines()[6:11]]
    assert intervals == ["given", "given", "given", "given", "unknown"]


def test_intervals_are_percentiles_of_each_samples_own_answer(fit_folder):
    known = read_law(str(fit_folder))
    assert known.samples is not None and known.n_runs == 60
    p = plan(known, flops=1e21)
    a = known.samples["beta"] / (known.samples["alpha"] + known.samples["beta"])
    total = known.samples["alpha"] + known.samples["beta"]
    ratio = (known.samples["alpha"] * known.samples["A"]) / (
        known.samples["beta"] * known.samples["B"]
    )
    n = ratio ** (1 / total) * (1e21 / 6) ** a  # the closed form, written out again
    np.testing.assert_allclose(p["n"]["interval_80"], np.quantile(n, [0.1, 0.9]), rtol=1e-12)
    np.testing.assert_allclose(p["n"]["interval_95"], np.quantile(n, [0.025, 0.975]), rtol=1e-12)
    np.testing.assert_allclose(p["exponents"]["a"]["interval_80"], np.quantile(a, [0.1, 0.9]))
    assert p["flops"]["interval_80"] == [1e21, 1e21]
    for key in ("n", "d", "tokens_per_param", "loss"):
        low, high = p[key]["interval_80"]
        lower, higher = p[key]["interval_95"]
        assert lower < low < p[key]["value"] < high < higher


@pytest.mark.parametrize("question", [
    {"flops": 1e21}, {"loss": 2.3}, {"n": 1e9, "d": 1e10}, {"flops": 1e21, "served": 1e12},
    {"flops": 1e21, "unique": 1e10}, {"loss": 2.5, "served": 1e12, "unique": 1e10},
])  # fmt: skip
@pytest.mark.parametrize("convention", ["6nd", "exact"])
def test_every_question_has_an_answer_an_interval_and_a_text(fit_folder, question, convention):
    p = plan(read_law(str(fit_folder)), convention, **question)
    json.dumps(p, allow_nan=False)
    assert p["convention"] == convention
    for key in ("n", "d", "loss"):
        low, high = p[key]["interval_80"]
        assert low <= p[key]["value"] <= high
    text = plan_text(p)
    assert amount(p["n"]["value"]) in text and f"{p['loss']['value']:.4f}" in text
    assert f"convention {convention}" in text
    assert "nan" not in text and "None" not in text and "inf " not in text


def test_the_shape_stays_on_the_budget_and_its_loss_is_near_the_best(fit_folder):
    for convention in ("6nd", "exact"):
        p = plan(read_law(str(fit_folder)), convention, TINY, flops=1e15)
        shape = p["shape"]
        spent = "flops" if convention == "exact" else "flops_6nd"
        assert shape[spent] == pytest.approx(1e15, rel=1e-6)
        assert shape["flops_6nd"] == pytest.approx(6 * shape["n_params"] * shape["n_tokens"])
        assert 0 <= shape["loss"]["value"] - p["loss"]["value"] < 1e-3 or convention == "exact"
        expected = surface("chinchilla", LAW).loss(shape["n_params"], shape["n_tokens"])[0, 0]
        assert shape["loss"]["value"] == pytest.approx(expected, rel=1e-9)


def test_served_tokens_are_part_of_the_budget_and_beat_the_training_optimum():
    known = read_law("chinchilla_2022")
    p, plain = plan(known, flops=1e23, served=1e13), plan(known, flops=1e23)
    assert p["n"]["value"] < plain["n"]["value"] and p["d"]["value"] > plain["d"]["value"]
    train, serve = p["flops_training"]["value"], p["flops_serving"]["value"]
    assert train == pytest.approx(6 * p["n"]["value"] * p["d"]["value"])
    assert serve == pytest.approx(2 * p["n"]["value"] * 1e13)
    assert train + serve == pytest.approx(1e23)
    other = p["if_trained_optimally"]
    assert other["flops_ratio"] > 1 and other["n"] > p["n"]["value"]
    again = plan(known, loss=p["loss"]["value"], served=1e13)
    assert again["n"]["value"] == pytest.approx(p["n"]["value"], rel=1e-6)
    assert again["flops"]["value"] == pytest.approx(1e23, rel=1e-9)


def test_unique_tokens_count_epochs_and_say_whose_decay_is_used():
    p = plan(read_law("chinchilla_2022"), flops=1e23, unique=1e11)
    assert p["epochs"]["value"] == pytest.approx(p["d"]["value"] / 1e11)
    assert p["epochs"]["value"] > 1
    assert p["loss_floor"] < p["loss"]["value"]
    assert any("data_constrained_2023" in w for w in p["warnings"])
    plenty = plan(read_law("chinchilla_2022"), flops=1e23, unique=1e15)
    free = plan(read_law("chinchilla_2022"), flops=1e23)
    assert plenty["n"]["value"] == pytest.approx(free["n"]["value"], rel=1e-9)
    own = plan(read_law("data_constrained_2023"), flops=1e23, unique=1e11)
    assert not any("decay constants" in w for w in own["warnings"])
    endless = plan(read_law("data_constrained_2023"), flops=1e23)
    assert any("as if data never repeated" in w for w in endless["warnings"])


def test_off_the_optimum_rows_cost_more():
    p = plan(read_law("chinchilla_2022"), flops=1e22)
    assert [row["n_factor"] for row in p["off_optimum"]] == [0.25, 0.5, 2.0, 4.0]
    for row in p["off_optimum"]:
        assert row["loss"] > p["loss"]["value"] and row["flops_ratio"] > 1
        assert row["n"] == pytest.approx(row["n_factor"] * p["n"]["value"])


def test_kaplan_says_which_of_its_laws_it_allocates_with():
    p = plan(read_law("kaplan_2020"), flops=1e21)
    assert p["n_counts"] == "n_params_non_embedding"
    assert any("allocates with L(N, D)" in w for w in p["warnings"])
    assert "without embeddings" in plan_text(p)
    assert p["shape"]["n_params_non_embedding"] == pytest.approx(p["n"]["value"], rel=0.02)


def test_samples_without_an_answer_are_counted_and_close_no_interval():
    warnings: list[str] = []
    good = np.linspace(1, 2, 95)
    bands = banded(np.array([1.5]), np.append(good, [np.nan] * 5), "n", warnings)
    assert bands["interval_95"] is None and bands["interval_80"] is not None
    assert warnings == ["5.0% of the bootstrap samples give no n"]
    assert banded(np.array([1.5]), np.append(good, [np.inf] * 20), "", [])["interval_80"] is None


def test_a_fit_that_did_not_settle_or_has_no_samples_says_so(fit_folder):
    path = fit_folder / "law.json"
    content = json.loads(path.read_text()) | {
        "status": "flat", "warnings": ["E is not identified"], "largest_flops": 1e20,
        "command": "fit --runs=r.csv --n=n_params_non_embedding",
    }  # fmt: skip
    path.write_text(json.dumps(content))
    (fit_folder / "bootstrap.csv").unlink()
    p = plan(read_law(str(path)), flops=1e22)
    said = "\n".join(p["warnings"])
    for text in ("ended as 'flat'", "E is not identified", "no bootstrap.csv", "100 times"):
        assert text in said
    assert p["n_counts"] == "n_params_non_embedding"


@pytest.mark.parametrize(("question", "says"), [
    ({}, "nothing is asked"),
    ({"flops": 1e21, "loss": 2.0}, "--flops and --loss are two questions"),
    ({"flops": 1e21, "n": 1e9, "d": 1e9}, "--flops and --n with --d are two questions"),
    ({"flops": 0.0}, "--flops=0 is not a positive number"),
    ({"flops": -1e20}, "not a positive number"),
    ({"loss": math.nan}, "not a positive number"),
    ({"flops": math.inf}, "not a positive number"),
    ({"n": 1e9}, "add --d"),
    ({"d": 1e9}, "add --n"),
    ({"loss": 1.69}, "not above 1.69, the lowest loss that chinchilla_2022 allows"),
    ({"loss": 1.9, "unique": 1e9}, "with 1e\\+09 unique tokens"),
    ({"flops": 1e21, "unique": -1.0}, "--unique_tokens=-1 is not a positive"),
    ({"flops": 1e21, "served": -1.0}, "--served_tokens=-1 must be 0 or more"),
    ({"flops": 1e21, "served": 1e25}, "no best model of 1 parameters or more"),
    ({"flops": 1e21, "served": 1e40}, "must be 0 or more, and at most 1e\\+25"),
    ({"flops": 1e300}, "more than can be planned for: give at most 1e\\+40"),
    ({"n": 1e100, "d": 1e9}, "--n=1e\\+100 is more than can be planned for"),
    ({"n": 0.5, "d": 1e9}, "--n=0.5 is less than one"),
    ({"loss": 5000.0}, "no best model"),
])  # fmt: skip
def test_bad_questions_are_refused_in_one_sentence(question, says):
    with pytest.raises(BadInput, match=says) as caught:
        plan(read_law("chinchilla_2022"), **question)
    assert "\n" not in str(caught.value)


def test_bad_laws_are_refused(fit_folder):
    path = fit_folder / "law.json"
    good = json.loads(path.read_text())
    for text, says in (
        ("{", "law.json is damaged .* it is not whole JSON"),
        ("[]", "law.json is damaged .* it is a list, not an object"),
        (json.dumps(good | {"law": "power", "params": {"a": 1.0, "b": -0.1}}), "no loss from N"),
        (json.dumps(good | {"law": "mine"}), "no loss from N and D"),
        (json.dumps(good | {"params": {"E": 1.0}}), "no usable value for the parameter A"),
        (json.dumps(good | {"params": LAW | {"A": math.nan}}), "it holds NaN, which is no number"),
        (json.dumps(good | {"params": LAW | {"A": "x"}}), "params.A is .x., not a number"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=says):
            read_law(str(path))
    path.write_text(json.dumps(good))
    names = ",".join(LAW)
    for table, says in (
        ("E,A\n1,2\n", "does not hold a column"),
        (f"{names}\nx,1,1,1,1\n", "E is .x. in row 1, not a number"),
    ):
        (fit_folder / "bootstrap.csv").write_text(table)
        with pytest.raises(BadInput, match=says):
            read_law(str(path))
    with pytest.raises(BadInput, match="there is no .*nothing.json"):
        read_law(str(fit_folder / "nothing.json"))
    with pytest.raises(BadInput, match="did you mean chinchilla_2022"):
        read_law("chinchilla_2202")


@pytest.fixture
def isoflop_folder(tmp_path):
    """What fitting by isoflop leaves: a frontier, its samples, the parametric answer beside."""
    frontier = {"N_0": 0.12, "a": 0.49, "D_0": 1.4, "b": 0.51}
    content = {"law": "chinchilla", "formula": "N* = N_0 C^a", "method": "isoflop",
               "params": frontier, "parametric": {"params": LAW}, "n_runs": 30}  # fmt: skip
    (tmp_path / "law.json").write_text(json.dumps(content))
    rows = "\n".join(f"{0.12 + k},{0.49},{1.4 - k},{0.51}" for k in np.linspace(-0.01, 0.01, 101))
    (tmp_path / "bootstrap.csv").write_text(f"N_0,a,D_0,b\n{rows}\n")
    return tmp_path


def test_a_frontier_answers_a_budget_with_the_loss_of_the_fit_beside(isoflop_folder):
    known = read_law(str(isoflop_folder))
    p = frontier_plan(known, Question(flops=1e21), TINY, "6nd")
    n, d = 0.12 * 1e21**0.49, 1.4 * 1e21**0.51
    assert p["n"]["value"] == pytest.approx(n) and p["d"]["value"] == pytest.approx(d)
    np.testing.assert_allclose(p["n"]["interval_80"], n * np.array([0.112, 0.128]) / 0.12)
    loss = LAW["E"] + LAW["A"] / n ** LAW["alpha"] + LAW["B"] / d ** LAW["beta"]
    assert p["loss"] == {"value": pytest.approx(loss), "interval_80": None, "interval_95": None}
    assert p["method"] == "isoflop" and p["exponents"]["a"]["value"] == 0.49
    assert p["shape"]["flops_6nd"] == pytest.approx(1e21, rel=1e-6)
    json.dumps(p, allow_nan=False)
    assert "N* grows as C^0.4900" in plan_text(p)
    for question in (Question(loss=2.2), Question(n=1e9, d=1e9), Question(flops=1e20, served=1e9)):
        with pytest.raises(BadInput, match="fit with --method=parametric"):
            frontier_plan(known, question, TINY, "6nd")


def test_a_frontier_without_a_surface_gives_no_loss(isoflop_folder):
    path = isoflop_folder / "law.json"
    content = json.loads(path.read_text())
    del content["parametric"]
    path.write_text(json.dumps(content))
    p = frontier_plan(read_law(str(path)), Question(flops=1e21), TINY, "exact")
    assert p["loss"]["value"] is None and p["shape"]["loss"]["value"] is None
    assert p["shape"]["flops"] == pytest.approx(1e21, rel=1e-6)
    assert any("no loss" in w for w in p["warnings"])
    assert "loss                               unknown" in plan_text(p)


@pytest.mark.parametrize(("x", "text"), [
    (32.19e9, "32.2e9"), (2.98e12, "2.98e12"), (999.96e9, "1e12"), (92.65, "92.65"),
    (1.0714, "1.071"), (0.5, "0.5"), (5120.0, "5120"), (40000.0, "40e3"), (0.0, "0"),
    (1024.0, "1024"), (999.99, "1000"), (9999.6, "10e3"), (0.0001234, "0.0001234"),
])  # fmt: skip
def test_amounts_read_as_people_write_them(x, text):
    assert amount(x) == text
