"""Ablations: means, standard errors and differences paired by seed, from files to the report."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_trunk import config

from experiments import report_file
from lm.config import freeze, to_dict
from lm.errors import BadInput
from lm.laws.figures.ablation import differences
from lm.sweep import ablation, table
from lm.sweep.points import make_points

VARIANTS = {"fresh": {"optim.staleness": 0}, "late": {"optim.staleness": 2}}
VARIANTS["later"] = {"optim.staleness": 9}
SEEDS = (0, 1, 5)


def ablated():
    found = ablation.settings({"variants": VARIANTS, "seeds": SEEDS}, "here")
    configs = []
    for _, overrides in found:
        c = to_dict(config(8))
        c["seed"], c["optim"]["staleness"] = overrides["seed"], overrides["optim.staleness"]
        configs.append((overrides, freeze(c)))
    return make_points(configs, groups=[name for name, _ in found])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Nine results, one of them of a run that diverged; and the losses by variant and seed."""
    out, rng = tmp_path_factory.mktemp("ablation"), np.random.default_rng(0)
    points, losses = ablated(), {}
    for i, p in enumerate(points):
        loss = 2 + 0.1 * p.config.seed + 0.01 * p.config.optim.staleness + 0.005 * rng.normal()
        lost = i == 8
        losses[p.group, p.config.seed] = loss
        run = out / "runs" / p.run_id
        run.mkdir(parents=True)
        result = {"eval_loss": None if lost else loss, "train_loss": loss, "n_params": 1000,
                  "n_tokens": 640, "flops": 1e6, "flops_6nd": 1e6,
                  "status": "diverged" if lost else "finished"}  # fmt: skip
        (run / "result.json").write_text(json.dumps(result))
        row = {"step": 1, "n_tokens": 64, "loss": loss}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    found = ablation.compare(points, out / "runs")
    (out / "ablation.json").write_text(json.dumps(found))
    table.write(points, out / "runs", out / "runs.csv")
    return out, found, losses


def test_means_and_paired_differences_are_those_of_the_t_test(folder):
    out, found, losses = folder
    assert found["baseline"] == "fresh" and len(found["diverged"]) == 1
    fresh, late, later = found["variants"]
    own = [losses["fresh", s] for s in SEEDS]
    assert fresh["mean"] == pytest.approx(np.mean(own)) and fresh["difference"] is None
    assert fresh["stderr"] == pytest.approx(stats.sem(own))
    test = stats.ttest_rel([losses["late", s] for s in SEEDS], own)
    d = late["difference"]
    assert d["mean"] / d["stderr"] == pytest.approx(test.statistic)
    assert d["interval_95"] == pytest.approx(list(test.confidence_interval(0.95)))
    # Seeds differ by far more than variants do: paired, the difference is seen all the same.
    assert d["stderr"] < 0.1 * fresh["stderr"] and d["interval_95"][0] > 0
    assert later["difference"]["n"] == 2 and later["losses"].keys() == {"0", "1"}
    rows = pd.read_csv(out / "runs.csv")
    head = (out / "runs.csv").read_text().splitlines()[0].split(",")
    assert len(set(head)) == len(head) and head[-1] == "optim.staleness"  # one column named seed
    assert list(rows["seed"]) == [s for _ in VARIANTS for s in SEEDS]
    assert later["settings"] == {"optim.staleness": 9}
    assert list(rows["group"]) == [name for name in VARIANTS for _ in SEEDS]
    said = ablation.text(found)
    assert said.splitlines()[1].startswith("fresh") and "left out, it diverged: later-s5" in said


def test_the_report_tables_variants_in_place_of_a_law(folder):
    out, found, _ = folder
    page = report_file.write(out).read_text()
    late = found["variants"][1]
    assert f"{late['difference']['mean']:+.4f}" in page and "less fresh" in page
    assert "diverged and is left out" in page and "no law" not in page
    assert (out / "figures" / "ablation.svg").is_file()


def test_staleness_is_drawn_against_its_steps_and_kinds_by_name(folder):
    _, found, _ = folder
    assert differences(found).axes[0].get_xlabel() == "optim.staleness"
    for v in found["variants"]:
        v["settings"] = {"model.ffn": v["variant"]}
    labels = [t.get_text() for t in differences(found).axes[0].get_yticklabels()]
    assert labels == ["later", "late", "fresh"]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"variants": {"one": {}}, "seeds": [0, 1]}, "two or more"),
        ({"variants": VARIANTS, "seeds": [0]}, "two different ones"),
        ({"variants": VARIANTS, "seeds": [0, 0]}, "two different ones"),
        ({"variants": {"a/b": {}, "c": {}}, "seeds": [0, 1]}, "letters, digits"),
    ],
)
def test_what_is_no_ablation_is_refused(wrong, words):
    with pytest.raises(BadInput, match=words):
        ablation.settings(wrong, "here")
