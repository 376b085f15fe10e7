"""The report: one page that asks for nothing, holds every run and number, and survives any part."""

import html
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments import report_file, sweep_folder
from lm.errors import BadInput
from lm.laws import report_page
from lm.laws.figures import gallery
from lm.laws.forms import LAWS
from lm.laws.report import Contents, constants
from lm.laws.report import report as page_of
from lm.laws.report_answer import answer
from tests import fake_sweep

ROOT = Path(__file__).parents[1]
EMPTY = {"meta", "img", "br", "hr", "path", "use", "link", "input"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fake_sweep.make(tmp_path_factory.mktemp("sweep") / "fake")


@pytest.fixture(scope="module")
def page(folder):
    path = report_file.write(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


class Strict(HTMLParser):
    """Fails on a tag that closes nothing; remembers ids, links and what is fetched."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.fetched, self.tags = [], [], [], [], []
        self.shown = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.fetched += [given[k] for k in ("src", "srcset", "data", "action") if k in given]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.shown.append(data)


def parsed(text):
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert all(link.startswith("#") and link[1:] in parser.ids for link in parser.links)
    assert parser.fetched == [] and not {"img", "link", "iframe", "object"} & set(parser.tags)
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert "//" not in text.replace("// ", "")  # nor an address without its scheme
    return parser


def shown(text):
    return " ".join("".join(parsed(text).shown).split())


def test_the_page_is_whole_and_asks_for_nothing(page):
    parser = parsed(page)
    assert parser.tags.count("svg") == 11 and parser.tags.count("script") == 1
    assert 'name="viewport"' in page and "@media print" in page
    assert len(page) < 1_500_000


def test_the_answer_comes_first_with_its_intervals(page, folder):
    plan = json.loads((folder / "plan.json").read_text())
    words = shown(page)
    head = words.split("Was the law right?")[0]
    for key in ("n", "d", "tokens_per_param"):
        low, high = plan[key]["interval_80"]
        assert report_page.count(plan[key]["value"]) in head
        assert f"80 %: {report_page.count(low)} to {report_page.count(high)}" in head
    assert f"{plan['loss']['value']:.4f}" in head
    assert "6.4×1013 FLOPs" in head  # the exponent is a superscript
    for warning in plan["warnings"]:
        assert " ".join(warning.split()) in words


def test_the_held_out_run_is_judged(page, folder):
    held = json.loads((folder / "prediction.json").read_text())
    words = shown(page)
    assert f"{held['predicted']:.4f}" in words and f"{held['measured']:.4f}" in words
    assert "1 %" in words.replace("\xa0", " ") and "inside the interval" in words
    assert "held out: predicted before it was trained" in words


def test_every_run_is_in_the_table_with_what_the_law_says(page, folder):
    rows = fake_sweep.rows()
    for row in rows:
        assert html.escape(row["run_id"]) in page
    body = page.split('id="runs"')[1].split("</table>")[0]
    assert body.count("<tr") == len(rows) + 2  # heading and the held-out run
    assert "status is diverged" in body and "model.d_model" in body
    values = [float(v) for v in re.findall(r'data-v="([\d.e+-]+)"', body)]
    law = json.loads((folder / "law.json").read_text())["params"]
    for row in (r for r in rows if r["status"] == "finished"):
        assert row["loss"] in values and row["n_params"] in values
        cells = body.split(html.escape(row["run_id"]))[1].split("</tr>")[0]
        by_law = LAWS["chinchilla"].predict(law, {"n": row["n_params"], "d": row["n_tokens"]})
        assert f"{float(by_law):.4f}" in cells


def test_a_hostile_run_id_stays_text(page):
    assert fake_sweep.HOSTILE not in page and "<img" not in page
    assert fake_sweep.HOSTILE in "".join(parsed(page).shown)


def test_commands_are_printed_as_they_were_given(page):
    words = "".join(parsed(page).shown)
    for command in (
        "python -m experiments.sweep --x",
        "python -m experiments.fit --law=chinchilla --where='a < b'",
        "python -m experiments.fit --law=isoflop",
        "python plan & go",
        "python -m experiments.report --workdir=",
        "python -m experiments.train --config=",
    ):
        assert command in words


def test_constants_have_their_intervals_and_the_warnings_are_said(page, folder):
    law = json.loads((folder / "law.json").read_text())
    words = shown(page)
    for name in law["params"]:
        spread = law["intervals"][name]
        assert f"{spread['10']:.4g} to {spread['90']:.4g}" in words
    for warning in law["warnings"]:
        assert warning in words


def test_figures_are_written_beside_the_page(page, folder):
    names = {p.name for p in (folder / "figures").iterdir()}
    assert {"isoflop_curves.svg", "isoflop_curves.png", "surface.svg"} <= names


@pytest.mark.parametrize("missing, said", [
    ("law.json", "there is no"), ("plan.json", "there is no answer yet"),
    ("prediction.json", "has not been tested beyond"), ("runs", "no learning curves"),
    ("bootstrap.csv", "there is no bootstrap.csv"), ("runs.csv", "There is no runs.csv"),
])  # fmt: skip
def test_a_missing_part_is_said_plainly(missing, said, folder, tmp_path, monkeypatch):
    few = {k: gallery.FITTED[k] for k in ("learning_curves", "bootstrap_cloud")}
    monkeypatch.setattr(gallery, "FITTED", few)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    gone = copy / missing
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert said in shown(report_file.write(copy).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "measured", [{"measured": None, "error": None}, {}, {"measured": 2.0, "predicted": None}]
)
def test_a_held_out_run_without_a_loss_leaves_the_page_whole(
    measured, folder, tmp_path, monkeypatch
):
    """It diverged (null), is not trained yet (no key), or was predicted by nothing."""
    few = {"predicted_measured": gallery.FITTED["predicted_measured"]}
    monkeypatch.setattr(gallery, "FITTED", few)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    held = json.loads((copy / "prediction.json").read_text())
    held = {k: v for k, v in held.items() if k not in ("measured", "error")} | measured
    (copy / "prediction.json").write_text(json.dumps(held))
    page = report_file.write(copy).read_text(encoding="utf-8")
    assert "has no measured loss yet" in shown(page)
    assert (copy / "figures" / "predicted_measured.svg").is_file()


def test_served_and_unique_tokens_are_said_and_training_alone_is_compared():
    quantity = lambda v: {"value": v, "interval_80": None}
    plan = {k: quantity(v) for k, v in (("n", 1e9), ("d", 2e10), ("tokens_per_param", 20.0),
            ("loss", 2.0), ("flops", 5e20), ("flops_training", 2e20), ("flops_serving", 3e20),
            ("epochs", 4.0))}  # fmt: skip
    plan |= {"served_tokens": 1e12, "unique_tokens": 5e9}
    words = shown(f"<div>{answer(plan, 1e20)}</div>")
    assert "training and serving FLOPs" in words and "2 times the largest fitted run" in words
    assert "Training takes 2×1020 FLOPs of them" in words and "4 epochs" in words
    plain = {k: v for k, v in plan.items() if "served" not in k and "unique" not in k}
    words = shown(f"<div>{answer(plain, 1e20)}</div>")
    assert "budget, training FLOPs" in words and "5 times the largest fitted run" in words
    assert "serving" not in words and "epochs" not in words


def test_the_laws_that_a_law_was_chosen_among_are_said(folder):
    law = Contents(
        "t", evidence=sweep_folder.material(folder / "law.json", folder / "runs.csv").evidence
    )
    errors = {"chinchilla": 0.021, "kaplan_nd": 0.034}
    found = {"chosen": "chinchilla", "largest_budget_error": errors}
    words = lambda c: shown(f"<div>{constants(c)}</div>").replace("\xa0", " ")
    assert "Chosen among chinchilla (2.1 %), kaplan_nd (3.4 %) by error" in words(
        replace(law, validation=found)
    )
    few = replace(law, validation=found | {"largest_budget_error": dict.fromkeys(errors)})
    assert "Not validated: there are too few runs" in words(few)
    assert "Nothing was validated" in words(law)
    assert "Nothing was validated" in words(replace(law, validation=found | {"chosen": "joint"}))


def test_runs_of_an_earlier_sweep_are_not_drawn(folder, tmp_path):
    copy = tmp_path / "a b"
    shutil.copytree(folder, copy)
    names = sorted(p.name for p in (copy / "runs").iterdir())
    listed = {"command": "x", "runs": names[:3], "held_out": names[5]}
    (copy / "sweep.json").write_text(json.dumps(listed))
    drawn = [c.run_id for c in sweep_folder.learning_curves(copy)]
    assert drawn == [*names[:3], names[5]]
    again = next(c for what, c in sweep_folder.commands(copy) if "Train one" in what)
    assert shlex.split(again)[3] == f"--config={copy}/runs/{names[0]}/config.json"


def test_a_broken_law_does_not_take_the_page_with_it(folder, tmp_path):
    shutil.copy(folder / "runs.csv", tmp_path)
    (tmp_path / "law.json").write_text("{half of")
    words = shown(report_file.write(tmp_path).read_text(encoding="utf-8"))
    assert "it is not whole JSON" in words and "c1e+11-s0" in words


def test_nothing_at_all_still_makes_a_page():
    words = shown(page_of(Contents("<empty>")))
    assert (
        "<empty>" in words and "There is no plan.json" in words and "There is no runs.csv" in words
    )


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="neither runs.csv nor plan.json"):
        report_file.write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.report", f"--workdir={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_numbers_that_are_not_numbers_become_a_dash():
    for form in (report_page.count, report_page.power, report_page.nats, report_page.digits):
        for value in (None, float("nan"), float("inf"), "x", True):
            assert form(value) == "&ndash;"
    assert report_page.power(9.9999e10) == "10<sup>11</sup>"
