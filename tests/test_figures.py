"""Figures show the numbers they were given: the artists' data against tables, fits and laws."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import figures as command
from experiments import sweep_folder
from lm.laws.allocate import frontier
from lm.laws.bootstrap import bootstrap
from lm.laws.evidence import TableLedger
from lm.laws.figures import broken, checks, curves, gallery, source, style, uncertainty
from lm.laws.forms.bnsl import bnsl
from lm.laws.forms.three_phase import three_phase
from lm.laws.runs import Runs
from lm.laws.surface import surface
from tests import fake_sweep

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fake_sweep.make(tmp_path_factory.mktemp("sweep") / "fake")


@pytest.fixture(scope="module")
def material(folder):
    return sweep_folder.material(folder / "law.json", folder / "runs.csv")


def lines(axes, label=None):
    return [line for line in axes.lines if label is None or line.get_label() == label]


def line(axes, label):
    (found,) = lines(axes, label)
    return np.array(found.get_xdata(), float), np.array(found.get_ydata(), float)


def words(drawn):
    from matplotlib.text import Text

    return " ".join(t.get_text() for t in drawn.findobj(Text))


def test_isoflop_curves_show_every_run_and_mark_the_bottom_of_each_parabola(material):
    drawn = gallery.isoflop_curves(material)
    axes, groups = drawn.axes[0], material.evidence.frontier.groups
    shown = [g for g in groups if g.skipped is None]
    assert len(shown) == 3 and len(groups) == 4
    x, y = line(axes, "minimum")
    assert np.array_equal(x, [g.n for g in shown]) and np.array_equal(y, [g.loss for g in shown])
    for group in shown:
        n, loss = line(axes, style.power(group.flops))
        assert n[np.argmin(loss)] == pytest.approx(group.n, rel=0.03)
        assert loss.min() == pytest.approx(group.loss, rel=1e-4)
    dots = np.concatenate([d.get_ydata() for d in lines(axes, "_runs") + lines(axes, "_skipped")])
    assert np.array_equal(np.sort(dots), np.sort(material.evidence.runs.y))
    assert len(lines(axes, "_skipped")) == 1
    assert "left out: the minimum lies below the smallest size" in words(drawn)
    for group, law in zip(shown, lines(axes, "_law"), strict=True):
        n = np.array(law.get_xdata())
        # Along the budget the law's loss is that of the true one to the noise of the table.
        truth = fake_sweep.loss(n, group.flops / (6 * n * fake_sweep.ratio(n)))
        assert np.allclose(law.get_ydata(), truth, rtol=0.02)


def test_powers_through_the_minima_are_those_of_the_frontier(material):
    drawn = gallery.minima_powers(material)
    p = material.evidence.frontier.params
    for axes, front, exponent in zip(drawn.axes, ("N_0", "D_0"), ("a", "b"), strict=True):
        fitted = next(item for item in axes.lines if "grows" in item.get_label())
        x, y = fitted.get_xdata(), fitted.get_ydata()
        assert np.allclose(y, p[front] * x ** p[exponent])
        assert f"{p[exponent]:.3f}" in fitted.get_label()
        assert any("80 %" in str(c.get_label()) for c in axes.collections)  # isoflop/bootstrap.csv


def test_surface_shows_the_frontier_its_band_and_the_plan(material):
    axes = gallery.surface_frontier(material).axes[0]
    x, y = line(axes, "N*(C) of the law")
    ledger = TableLedger(material.evidence.runs)
    assert np.allclose(y, frontier(material.surface(), x, ledger).n[:, 0], rtol=1e-6)
    (band,) = [c for c in axes.collections if c.get_label() == "80 % band"]
    low, high = band.get_datalim(axes.transData).intervaly
    assert low < y[0] and y[-1] < high
    star = next(c for c in axes.containers if c.get_label() == "plan (80 %)")
    plan = material.plan
    assert star[0].get_xdata()[0] == plan["flops"]["value"] == 6.4e13
    assert star[0].get_ydata()[0] == plan["n"]["value"]
    bar = star[2][0].get_segments()[0][:, 1]
    assert np.allclose(bar, plan["n"]["interval_80"])
    runs, sizes = line(axes, "runs")
    assert np.array_equal(sizes, material.evidence.runs.x["n"])


def test_the_ledger_of_a_table_counts_as_the_table_does_and_is_optimal():
    n = np.geomspace(1e4, 1e6, 12)
    d = np.geomspace(1e8, 1e6, 12)
    exact = 6 * n * d
    for factor in (np.ones(12), 1.3 * (n / 1e5) ** -0.04):
        runs = Runs({"n": n, "d": d, "flops": exact * factor}, n, np.arange(12), [], [], {}, {})
        ledger = TableLedger(runs)
        assert np.allclose(ledger.tokens(n, exact * factor), d, rtol=1e-12)
        law = surface("chinchilla", fake_sweep.TRUE)
        budget = np.geomspace(1e11, 1e14, 4)
        found, searched = ledger.best(law, budget), frontier(law, budget, ledger)
        for name in ("n", "d", "loss"):
            assert np.allclose(getattr(found, name), getattr(searched, name), rtol=1e-7), name
        assert np.allclose(found.n * found.d * 6 * np.interp(found.n, n, factor), found.flops,
                           rtol=0.02)  # fmt: skip


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_law_without_an_optimum_is_not_drawn_and_takes_nothing_with_it(name, material):
    """The law of a fit whose exponent ended on its bound."""
    from dataclasses import replace

    params = material.evidence.params | {name: 0.0}
    flat = gallery.Material(replace(material.evidence, params=params))
    wanted = {k: gallery.FITTED[k] for k in ("surface", "frontier")}
    drawn, undrawn = gallery.draw(wanted, flat)
    assert not drawn
    assert set(undrawn.values()) == {"the law has no optimum at these budgets"}


def test_frontier_bands_reach_the_plan_and_are_dotted_beyond_the_runs(material):
    drawn = gallery.frontier_bands(material)
    largest = material.evidence.runs.x["flops"].max()
    for axes, key in zip(drawn.axes, ("n", "d", "loss"), strict=True):
        beyond = line(axes, "beyond the runs")[0]
        assert beyond[0] == pytest.approx(largest) and beyond[-1] > 6.4e13
        star = next(c for c in axes.containers if c.get_label() == "plan (80 %)")
        assert star[0].get_ydata()[0] == material.plan[key]["value"]


def test_learning_curves_keep_their_ends_and_the_envelope_is_the_lowest_so_far(material):
    drawn = gallery.learning_curves(material)
    axes = drawn.axes[0]
    assert len(material.curves) == 18
    for curve in material.curves:
        flops, loss = line(axes, f"_{curve.run_id}")
        assert flops[-1] == pytest.approx(curve.flops[-1], rel=0.03)
        assert loss.min() >= curve.loss.min() - 1e-12 and loss.max() <= curve.loss.max() + 1e-12
    _, lowest = line(axes, "lowest so far")
    assert np.all(np.diff(lowest) <= 0)
    assert lowest[-1] == pytest.approx(min(c.loss[-1] for c in material.curves), rel=0.02)
    assert "parameters N" in words(drawn) and "nats per token" in words(drawn)


def test_smoothing_averages_bins_and_loses_no_step():
    flops, loss = np.geomspace(1, 1e4, 500), np.random.default_rng(0).normal(3, 0.1, 500)
    x, y = curves.smoothed(curves.LearningCurve("r", 1.0, flops, loss), bins=10)
    assert x.size == 10 and np.allclose(y, loss.reshape(10, 50).mean(1))
    few = curves.LearningCurve("r", 1.0, np.array([0.0, 2.0, 4.0]), np.array([9.0, 5.0, np.nan]))
    assert [v.tolist() for v in curves.smoothed(few)] == [[2.0], [5.0]]


def test_residuals_are_measured_over_predicted_in_percent_with_outliers_ringed():
    predicted, percent = np.full(6, 2.0), np.array([1.0, -1.0, 0.5, 0.0, -0.5, 20.0])
    measured, flops = predicted * (1 + percent / 100), np.geomspace(1e18, 1e21, 6)
    drawn = checks.residuals(measured, predicted, flops, "flops", np.array([5]))
    assert np.allclose(line(drawn.axes[0], "runs")[1], percent)
    assert np.allclose(line(drawn.axes[0], "flagged as outliers")[1], [20.0])
    assert sum(p.get_width() for p in drawn.axes[1].patches) == 6
    assert "%" in drawn.axes[0].get_ylabel()


def test_the_held_out_run_stands_at_its_prediction_with_its_interval(material):
    drawn = gallery.predicted_measured(material)
    star = drawn.axes[0].containers[0]
    held = material.prediction
    assert star[0].get_xdata()[0] == held["predicted"]
    assert star[0].get_ydata()[0] == held["measured"]
    assert np.allclose(star[2][0].get_segments()[0][:, 0], held["interval_80"])
    x, y = line(drawn.axes[0], "fitted runs")
    assert np.array_equal(y, material.evidence.runs.y) and np.allclose(x, y, rtol=0.02)


def test_rollout_shows_every_larger_run_and_their_mean(material):
    drawn = gallery.rollout(material)
    at, mean = line(drawn.axes[0], "their mean")
    by = material.evidence.runs.x["flops"]
    for threshold, value, dots in zip(at, mean, lines(drawn.axes[0], "_runs"), strict=True):
        assert len(dots.get_ydata()) == np.sum(by >= threshold)
        assert np.mean(dots.get_ydata()) == pytest.approx(value)
        assert f"{np.sum(by < threshold)} \u2192 {np.sum(by >= threshold)}" in words(drawn)


def test_bootstrap_cloud_shows_the_samples_and_the_fit(material):
    axes = gallery.bootstrap_cloud(material).axes[0]
    x, y = line(axes, "_samples")
    samples = material.evidence.samples
    assert np.array_equal(x, samples["alpha"]) and np.array_equal(y, samples["beta"])
    point = line(axes, "the fit")
    assert (point[0][0], point[1][0]) == tuple(
        material.evidence.params[k] for k in ("alpha", "beta")
    )


def test_the_ellipse_holds_its_share_of_a_gaussian():
    x, y = np.random.default_rng(0).multivariate_normal([1, 2], [[2, 1.2], [1.2, 1]], 20000).T
    for share in (0.5, 0.95):
        border = np.stack(uncertainty.ellipse(x, y, share))
        inverse = np.linalg.inv(np.cov(x, y))
        centred = np.stack([x - x.mean(), y - y.mean()])
        radius = (
            (border[:, 0] - [x.mean(), y.mean()]) @ inverse @ (border[:, 0] - [x.mean(), y.mean()])
        )
        inside = np.einsum("is,ij,js->s", centred, inverse, centred) <= radius
        assert inside.mean() == pytest.approx(share, abs=0.01)


def test_profile_curves_touch_the_wall_where_the_interval_ends(material):
    drawn = gallery.profile_curves(material)
    names = [*material.fit.law.names, "a"]
    assert len([a for a in drawn.axes if a.get_visible()]) == len(names)
    for axes, name in zip(drawn.axes, names, strict=False):
        title = axes.get_title(loc="left")
        low, high = (float(v) for v in re.findall(r"from (\S+) to (\S+)", title)[0])
        x, y = axes.lines[0].get_xdata(), axes.lines[0].get_ydata()
        assert np.interp(low, x, y) == pytest.approx(1, abs=0.1), name
        assert np.interp(high, x, y) == pytest.approx(1, abs=0.1), name
        assert low < axes.lines[2].get_xdata()[0] < high


def test_a_fit_that_cannot_be_made_again_is_not_profiled(material):
    from dataclasses import replace

    other = replace(material.evidence, params=material.evidence.params | {"E": 0.5})
    _, undrawn = gallery.draw({"profile_curves": gallery.profile_curves},
                              gallery.Material(other))  # fmt: skip
    assert "cannot be made again" in undrawn["profile_curves"]


def test_figure_2_3_has_three_phases_and_is_the_law():
    drawn = source.three_phase()
    axes = drawn.axes[0]
    x, y = line(axes, "the law")
    assert np.allclose(y, three_phase.predict(source.EXAMPLE, {"x": x}))
    first, last = source.knees(source.EXAMPLE)
    assert x[0] < first < source.EXAMPLE["x_c"] < last < x[-1]
    E, L_0 = source.EXAMPLE["E"], source.EXAMPLE["L_0"]
    left = three_phase.predict(source.EXAMPLE, {"x": np.array([first, last])})
    assert np.allclose((left - E) / (L_0 - E), [0.9, 0.1])
    assert len(axes.patches) == 3 and "irreducible" in words(drawn)


def test_figure_2_4_draws_kaplans_laws_with_their_published_constants():
    drawn = source.kaplan()
    for axes, (front, exponent) in zip(drawn.axes, ((8.8e13, 0.076), (5.4e13, 0.095)), strict=True):
        x, y = axes.lines[0].get_xdata(), axes.lines[0].get_ydata()
        assert np.allclose(y, (front / x) ** exponent)
        assert axes.get_xscale() == axes.get_yscale() == "log"


def test_double_descent_says_that_its_data_is_generated_and_falls_rises_falls():
    x, y = broken.double_descent_example()
    law = bnsl(2)
    drawn = broken.one_input(law, broken.DOUBLE_DESCENT, x, y, title="generated data")
    fit_x, fit_y = line(drawn.axes[0], "fit of bnsl")
    turns = np.flatnonzero(np.diff(np.sign(np.diff(fit_y))))
    assert len(turns) == 2 and fit_y[turns[0]] < fit_y[turns[1]]
    assert len(lines(drawn.axes[0], "breaks")) == 1  # and the second under an unlisted label
    assert np.allclose(line(drawn.axes[0], "runs")[1], y)
    assert np.allclose(np.interp(x, fit_x, fit_y), y, rtol=0.05)


def test_a_law_of_one_input_shows_what_it_was_not_fitted_to(tmp_path):
    import pandas as pd

    from lm.laws.request import Request, fit_table
    from lm.laws.result import write_law

    x = np.geomspace(10, 1e4, 14)
    table = pd.DataFrame({"cost$": x, "loss": 1 + 5 * x**-0.5, "kept": x < 3e3})
    content, samples = fit_table(
        Request(runs=table, law="power_floor", where="kept", columns={"x": "cost$"}, bootstrap=25)
    )
    write_law(tmp_path, content, samples)
    m = sweep_folder.material(tmp_path / "law.json", table)
    drawn = gallery.one_input(m)
    assert len(line(drawn.axes[0], "runs")[0]) == table["kept"].sum()
    held, values = line(drawn.axes[0], "not fitted")
    assert np.allclose(held, x[x >= 3e3]) and np.allclose(values, 1 + 5 * held**-0.5)
    style.write(drawn, tmp_path, "one")  # the dollar of the column starts no formula


def test_exact_match_is_a_power_of_the_accuracy_of_one_token(material):
    drawn = gallery.emergence(material)
    floor = material.surface().floor()[0]
    smooth, sharp = drawn.axes
    accuracy = np.exp(-(material.evidence.runs.y - floor))
    assert np.allclose(lines(smooth, "_runs")[0].get_ydata(), accuracy)
    for dots, k in zip(lines(sharp, "_runs"), (2, 4, 8, 16), strict=True):
        assert np.allclose(dots.get_ydata(), accuracy**k)
    assert "computed from each run's loss as exp(-(loss - " in words(drawn)


@pytest.mark.parametrize("low", [1e-3, 0.9, 2.1, 7e3, 1.2e18])
@pytest.mark.parametrize("span", [1.05, 1.7, 4.5, 30.0, 2e3, 1e9])
def test_log_ticks_are_few_within_the_axis_and_growing(low, span):
    ticks = style.log_ticks(low, low * span)
    assert 1 <= len(ticks) <= 8 and np.all(np.diff(ticks) > 0)
    assert low * 0.999 <= ticks[0] and ticks[-1] <= low * span * 1.001
    assert len(ticks) >= 3 or span < 5


def test_numbers_read_as_people_write_them():
    assert [style.count(v) for v in (999, 1500, 3e4, 9.9999e5, 70e9, 1.4e12)] == [
        "999", "1.5k", "30k", "1M", "70B", "1.4T"
    ]  # fmt: skip
    assert style.power(1e18) == "$10^{18}$" and style.power(9.9999e10) == "$10^{11}$"
    assert style.power(3e-4) == "$3\\times 10^{-4}$"


def test_svg_is_the_same_every_time_and_stands_inside_a_page():
    drawn = source.kaplan()
    first = style.svg_text(drawn)
    assert first == style.svg_text(source.kaplan())
    width, inline = style.svg_inline(first, "k", 'a "quoted" <label>')
    assert width == pytest.approx(drawn.get_figwidth(), rel=1e-3)
    assert "http" not in inline and "<script" not in inline and "<label>" not in inline
    ids = re.findall(r'\bid="([^"]*)"', inline)
    assert len(ids) == len(set(ids)) > 5 and all(i.startswith("k-") for i in ids)
    used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', inline)
    assert used and {a or b for a, b in used} <= set(ids)


def test_the_command_writes_all_it_can_and_says_what_it_cannot(folder, tmp_path, monkeypatch):
    some = ("predicted_measured", "learning_curves", "bootstrap_cloud", "one_input")
    monkeypatch.setattr(gallery, "FITTED", {k: gallery.FITTED[k] for k in some})
    monkeypatch.setattr(gallery, "SOURCE", {"figure_2_4_kaplan": source.kaplan})
    (tmp_path / "law.json").write_bytes((folder / "law.json").read_bytes())
    written, undrawn = command.write(tmp_path / "out", tmp_path, folder / "runs.csv")
    names = {p.name for p in written}
    assert all(p.stat().st_size > 2000 for p in written)
    made = {*gallery.SOURCE, *gallery.FITTED} - set(undrawn)
    assert names == {f"{name}.{kind}" for name in made for kind in ("png", "svg")}
    assert set(undrawn) == {"learning_curves", "bootstrap_cloud", "one_input"}
    assert "bootstrap.csv" in undrawn["bootstrap_cloud"]


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "no folder given"),
        (["--out={tmp}", "--law=x"], "add --runs"),
        (["--out={tmp}", "--law={tmp}", "--runs=none.csv"], "fit a law with experiments.fit"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(args, said, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.figures", *(a.format(tmp=tmp_path) for a in args)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_table_that_is_not_the_laws_is_refused(folder):
    import pandas as pd

    from lm.errors import BadInput

    whole = pd.read_csv(folder / "runs.csv")
    for other, said in (
        (whole.iloc[:3], "not the one that"),
        (whole.iloc[:12], "was fitted to 18"),
    ):
        with pytest.raises(BadInput, match=said):
            sweep_folder.material(folder / "law.json", other)


def test_samples_of_a_refit_pass_through(material):
    assert len(bootstrap(material.fit, 20)) == 20  # the fit behind the profiles is a whole one
