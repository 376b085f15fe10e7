"""experiments.fit from table to law.json: contents, statuses, exit codes, nothing half-written."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from lm.errors import BadInput
from lm.laws.bootstrap import bias_corrected, failure_warning
from lm.laws.fit_text import fit_text
from lm.laws.forms import LAWS
from lm.laws.law_file import read_law
from lm.laws.request import Request, fit_table
from lm.laws.result import write_law
from tests.published_tables import TRUE, cloud, isoflops, noisy, path_of

KEYS = {
    "law", "method", "params", "stderr", "intervals", "exponents", "objective", "starts", "n_runs",
    "excluded", "status", "warnings", "versions",
}  # fmt: skip


def frame(x, y):
    return pd.DataFrame({"n_params": x["n"], "n_tokens": x["d"], "flops": x["flops"], "loss": y})


def runs(rows=60, sigma=0.01):
    x = cloud(rows)
    return frame(x, noisy(x, sigma))


def command(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "experiments.fit", *args],
        capture_output=True, text=True, timeout=120, check=False, **kwargs,
    )  # fmt: skip


def test_law_json_has_what_the_contract_says(tmp_path):
    runs().to_csv(tmp_path / "runs.csv", index=False)
    done = command(f"--runs={tmp_path}/runs.csv", f"--out={tmp_path}/out", "--bootstrap=60")
    assert done.returncode == 0, done.stderr
    assert "status: converged" in done.stdout and "80 % in" in done.stdout
    law = json.loads((tmp_path / "out" / "law.json").read_text())
    assert law.keys() >= KEYS | {"command"}
    assert law["command"].startswith("python -m experiments.fit --runs=")
    assert law["law"] == "chinchilla" and law["method"] == "parametric"
    assert law["params"].keys() == TRUE.keys()
    assert law["exponents"].keys() == {"a", "b"}
    assert law["objective"].keys() == {"name", "delta", "sum", "mean", "gradient"}
    assert law["objective"]["gradient"] < 1e-12
    assert law["starts"]["tried"] >= law["starts"]["agreeing"] > 0
    assert law["n_runs"] == 60 and law["status"] == "converged"
    for name in (*TRUE, "a", "b", "log_A"):
        levels = law["intervals"][name]
        assert list(levels) == ["2.5", "10", "50", "90", "97.5"]
        assert list(levels.values()) == sorted(levels.values()) and law["stderr"][name] > 0
    assert law["n_counts"] == "n_params" and law["largest_flops"] > 0
    with (tmp_path / "out" / "bootstrap.csv").open() as file:
        assert file.readline().strip().split(",") == list(law["params"])
        samples = np.loadtxt(file, delimiter=",")
    assert samples.shape == (60, 5)
    corrected = bias_corrected(samples[:, 0], law["params"]["E"])
    assert list(law["intervals"]["E"].values()) == pytest.approx(corrected, rel=1e-12)
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_full_precision_survives_the_file(tmp_path):
    content, samples = fit_table(Request(runs=runs(), bootstrap=30, profile=False))
    write_law(tmp_path, content, samples)
    again = json.loads((tmp_path / "law.json").read_text())
    assert again["params"] == content["params"]
    table = pd.read_csv(tmp_path / "bootstrap.csv")
    np.testing.assert_array_equal(table["A"], samples.params["A"])
    # Another fit without samples leaves none of the old ones behind.
    write_law(tmp_path, content, None)
    assert not (tmp_path / "bootstrap.csv").exists()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: t.drop(columns="loss"), "column 'loss'"),
        (lambda t: t.astype({"loss": object}).replace({"loss": {t.loss[3]: "two"}}), "row 4"),
        (lambda t: t[:2], "2 usable rows"),
        (lambda t: t.assign(loss=-1.0), "must be positive"),
    ],
)
def test_bad_tables_exit_with_2_and_write_nothing(tmp_path, change, words):
    change(runs()).to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(BadInput, match=words) as error:
        fit_table(Request(runs=tmp_path / "runs.csv", bootstrap=0))
    assert "\n" not in str(error.value)


def test_bad_input_from_the_command_line(tmp_path):
    runs()[:2].to_csv(tmp_path / "runs.csv", index=False)
    done = command(f"--runs={tmp_path}/runs.csv", f"--out={tmp_path}/out")
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert "2 usable rows" in done.stderr and "Traceback" not in done.stderr
    assert command().returncode == 2


@pytest.mark.parametrize(
    "settings, words",
    [
        (dict(law="chinchila"), "did you mean chinchilla"),
        (dict(law="kaplan_n", method="isoflop"), "belongs to law chinchilla"),
        (dict(fix=("E",)), "--fix=E"),
        (dict(fix=("E=one",)), "number"),
        (dict(bound=("E=1",)), "LOW:HIGH"),
        (dict(bootstrap=-1), "bootstrap"),
        (dict(cluster="nothing"), "column 'nothing'"),
        (dict(seed=-1), "seed is -1, but must be zero or more"),
        (dict(weights="kind"), "column 'kind' .* holds text"),
        (dict(weights="nope"), "column 'nope' is not in the table: it has n_params, n_tokens"),
        (dict(leave_out="nope"), "column 'nope' is not in the table"),
        (dict(compare=("chinchila",)), "did you mean chinchilla"),
        (dict(fix=("E=-4",)), "E is fixed at -4, but must be 0 or more"),
        (dict(fix=("alpha=21",)), "alpha is fixed at 21, but must be from 0 to 20"),
        (dict(fix=("A=0",)), "A is fixed at 0, but must be finite and above 0"),
        (dict(fix=("E=nan",)), "E is fixed at nan, but must be finite"),
        (dict(bound=("E=-5:-2",)), "bounds of E are .*, but it lies between 0 and inf"),
        (dict(bound=("A=-5:-2",)), "bounds of A are .*, but it lies between 0 and inf"),
        (dict(law="isoflop", method="envelope"), "--method=envelope are two methods: give one"),
        (dict(law="envelope", method="parametric"), "--method=parametric are two methods"),
        (dict(breaks=2), "law chinchilla does not read --breaks: .* --law=bnsl"),
        (dict(columns={"unique": "kind"}), "law chinchilla does not read --unique"),
        (dict(columns={"accuracy": "kind"}), "law chinchilla does not read --accuracy"),
        (dict(columns={"x": "flops"}), r"does not read --x: leave it out \(it reads n, d, loss"),
        (dict(tau=0.2), "objective huber does not read --tau: .* --objective=asymmetric"),
        (dict(objective="squared", delta=0.1), "objective squared does not read --delta"),
        (dict(test="chinchilla_2023"), "did you mean"),
        (dict(test="kaplan_2020"), "kaplan_nd"),
        (dict(law="envelope"), "run_id"),
        (dict(law="bnsl", columns={"x": "flops"}, breaks=-1), "breaks"),
        *(
            (dict(law="isoflop", **{name: value}), f"method isoflop does not read --{name}")
            for name, value in dict(
                fix=("E=1",),
                tie=("beta=alpha",),
                bound=("E=0:2",),
                weights="w",
                strata="kind",
                above=1e20,
                test="chinchilla_2022",
                leave_out="kind",
                compare=("kaplan_nd",),
                drop_outliers=True,
                cluster="kind",
            ).items()
        ),
        (dict(law="envelope", curve="akima"), "does not read --curve: .* --method=isoflop"),
        (dict(law="envelope", tau=0.1), "--method=parametric or isoflop"),
        (dict(curve="akima"), "method parametric does not read --curve"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, words):
    table = runs(20).assign(kind="a")
    with pytest.raises(BadInput, match=words) as error:
        fit_table(Request(**({"runs": table, "bootstrap": 10, "profile": False} | settings)))
    assert "\n" not in str(error.value)


def test_equal_rows_are_flat_and_have_no_exponents(tmp_path):
    """Both exponents end at 0: nothing is best, and nothing is divided by their sum."""
    table = pd.DataFrame({"n_params": [1e8] * 20, "n_tokens": 2e9, "loss": 3.2})
    content, samples = fit_table(Request(runs=table, bootstrap=30))
    assert content["status"] == "flat" and "nan" not in fit_text(content)
    assert content["params"]["alpha"] == content["params"]["beta"] == 0
    assert content["exponents"] is None
    write_law(tmp_path, content, samples)
    assert not any(w.startswith("there is no") for w in read_law(str(tmp_path)).warnings)


def test_too_few_refits_give_no_intervals_and_say_so():
    content, samples = fit_table(Request(runs=runs(40), bootstrap=10, profile=False))
    assert len(samples) == 10 and not content["intervals"]
    (said,) = [w for w in content["warnings"] if "interval" in w]
    assert said == "no intervals: 10 refits are fewer than 20"
    content, _ = fit_table(Request(runs=runs(40), bootstrap=0, profile=False))
    assert not any("interval" in w for w in content["warnings"])
    assert failure_warning(995, 1000) == [
        "no intervals: 995 of 1000 resampled tables had no minimum; 5 refits are fewer than 20"
    ]
    assert "are too narrow" in failure_warning(100, 1000)[0] and not failure_warning(10, 1000)


def test_excluded_rows_and_outliers_with_both_answers():
    """Fault: outliers and diverged runs slip in or vanish."""
    table = runs(80, 0.003)
    table.loc[5, "loss"] *= 1.5
    table.loc[7, "loss"] = np.nan
    kept, _ = fit_table(Request(runs=table, bootstrap=0, objective="squared_log", profile=False))
    assert [e["row"] for e in kept["excluded"]] == [8]
    assert [o["row"] for o in kept["outliers"]] == [6] and "% above" in kept["outliers"][0][
        "reason"
    ]
    dropped, _ = fit_table(
        Request(runs=table, bootstrap=0, objective="squared_log", drop_outliers=True, profile=False)
    )
    assert [e["row"] for e in dropped["excluded"]] == [8, 6]
    assert dropped["params"] == kept["without_outliers"]["params"]
    assert kept["params"] == dropped["with_outliers"]["params"]
    assert dropped["n_runs"] == 78 and kept["n_runs"] == 79
    closer = [abs(d["params"]["alpha"] - 0.34) for d in (dropped, kept)]
    assert closer[0] < closer[1]


def test_one_size_is_flat_and_says_so():
    x = cloud(40)
    x["n"] = np.full(40, 1e9)
    content, _ = fit_table(Request(runs=frame(x, noisy(x, 0.01)), bootstrap=0, profile=False))
    assert content["status"] == "flat"
    assert any("A" in w and "alpha" in w and "same n" in w for w in content["warnings"])
    json.dumps(content["params"], allow_nan=False)


def test_isoflop_stands_beside_the_parametric_answer(tmp_path):
    x = isoflops(5, 15)
    content, samples = fit_table(
        Request(runs=frame(x, noisy(x, 0.004)), law="isoflop", bootstrap=40)
    )
    assert content["law"] == "chinchilla" and content["method"] == "isoflop"
    assert content.keys() >= KEYS and len(content["groups"]) == 5
    assert content["exponents"]["a"] + content["exponents"]["b"] == pytest.approx(1, abs=1e-9)
    beside = content["parametric"]
    assert beside["params"].keys() == TRUE.keys()
    assert any(f"{beside['method_bias_a']:+.4f}" in w for w in content["warnings"])
    assert "budget" not in fit_text(content) and "N*" in fit_text(content)
    write_law(tmp_path, content, samples)
    assert len(pd.read_csv(tmp_path / "bootstrap.csv")) == 40
    akima, _ = fit_table(
        Request(runs=frame(x, noisy(x, 1e-4)), law="isoflop", curve="akima", bootstrap=0)
    )
    assert akima["params"]["a"] == pytest.approx(0.452, abs=0.02)


def test_samples_never_lie_beside_a_law_that_is_not_theirs(tmp_path):
    content, samples = fit_table(Request(runs=runs(40), bootstrap=30, profile=False))
    write_law(tmp_path, content, samples)
    (tmp_path / "law.json").unlink()
    (tmp_path / "law.json").mkdir()  # the next law cannot take its place
    with pytest.raises(BadInput, match="cannot be written"):
        write_law(tmp_path, content, samples)
    assert [p.name for p in tmp_path.iterdir()] == ["law.json"]


def test_envelope_from_learning_curves():
    n = np.repeat(np.geomspace(2e7, 2e10, 12), 20)
    d = np.tile(np.geomspace(1e8, 2e12, 20), 12)
    x = {"n": n, "d": d, "flops": 6 * n * d}
    table = frame(x, noisy(x, 0.001)).assign(run_id=np.repeat(np.arange(12), 20))
    content, samples = fit_table(Request(runs=table, law="envelope", bootstrap=30))
    assert content["method"] == "envelope"
    assert content["exponents"]["a"] == pytest.approx(
        LAWS["chinchilla"].exponents(TRUE)["a"], abs=0.04
    )
    assert len(samples) == 30


def test_holdout_and_test_of_published_constants():
    table = runs(100)
    threshold = float(table["flops"].quantile(0.8))
    content, _ = fit_table(
        Request(
            runs=table,
            bootstrap=0,
            profile=False,
            above=threshold,
            test="chinchilla_replication_2024",
        )  # fmt: skip
    )
    assert content["validation"]["n_predicted"] == 20
    assert content["validation"]["mean_relative_error"] < 0.03
    assert content["published_test"]["p_value"] < 1e-3
    text = fit_text(content)
    assert "the other 20" in text and "chinchilla_replication_2024" in text


def test_rows_left_out_by_where_are_predicted():
    table = runs(60).assign(kind=["fit"] * 50 + ["later"] * 10)
    table.loc[55, "loss"] *= np.exp(0.1)
    content, _ = fit_table(Request(runs=table, bootstrap=0, profile=False, where="kind == 'fit'"))
    errors = content["rms_log_error"]
    assert errors["n_fitted"] == 50 and errors["n_left_out"] == 10
    assert errors["fitted"] < 0.013 and 0.03 < errors["left_out"] < 0.045
    assert "10 left out by where" in fit_text(content)


def test_published_curve_with_a_break():
    """The published script's fit: its error on the fitted points and on the three beyond."""
    content, _ = fit_table(
        Request(
            runs=path_of("bnsl_4digit_addition.csv"),
            law="bnsl",
            objective="squared_log1p",
            where="split == 'fit'",
            columns={"x": "dataset_size"},
            bootstrap=0,
            profile=False,
        )  # fmt: skip
    )
    assert content["rms_log_error"]["fitted"] <= 5.9849e-4
    assert content["rms_log_error"]["left_out"] == pytest.approx(0.0109, abs=1e-4)


def test_left_out_groups_and_compared_laws():
    table = runs(90).assign(third=np.repeat(["a", "b", "c"], 30))
    content, _ = fit_table(
        Request(
            runs=table,
            bootstrap=0,
            profile=False,
            leave_out="third",
            compare=("kaplan_nd", "overtraining"),
        )  # fmt: skip
    )
    assert [h["left_out"] for h in content["left_out"]] == ["a", "b", "c"]
    assert all(h["mean_relative_error"] < 0.03 for h in content["left_out"])
    assert {s["law"] for s in content["comparison"]} == {"chinchilla", "kaplan_nd", "overtraining"}
    errors = [s["out_of_sample"] for s in content["comparison"]]
    assert errors == sorted(errors)
    text = fit_text(content)
    assert "without b" in text and "AIC" in text
    with pytest.raises(BadInput, match="unique"):
        fit_table(Request(runs=table, bootstrap=0, profile=False, compare=("data_constrained",)))


def test_published_table_end_to_end(tmp_path):
    path = path_of("chinchilla_epoch.csv")
    began = time.monotonic()
    done = command(
        f"--runs={path}", f"--out={tmp_path}", "--where=excluded_in_replication == 0",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    law = json.loads((tmp_path / "law.json").read_text())
    assert law["objective"]["sum"] <= 1.0182740179e-3
    assert law["n_runs"] == 240 and len(law["excluded"]) == 5
    assert law["stderr"]["a"] == pytest.approx(0.0200, rel=0.15)
    assert took < 30, f"{took:.1f} s on a machine that should need 3"
