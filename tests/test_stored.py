"""Damaged files of fits, plans and sweeps: one sentence with the file, the place and what to do."""

import copy
import json
import re

import pytest

from experiments import report_file, sweep_folder
from lm.errors import BadInput
from lm.laws.figures import gallery
from lm.laws.law_file import read_law
from lm.laws.stored import NUMBER, POSITIVE, TEXT, WHOLE, Maybe, Unfit, match
from tests import fake_sweep

DAMAGE = {
    "binary": lambda data: b"\x89PNG\r\n\x1a\n\xff\xfe" + data[:50],
    "cut in half": lambda data: data[: len(data) // 2 + 1],
    "a list": lambda data: b"[1, 2]\n",
    "another object": lambda data: b'{"answer": 42}\n',
    "nested": lambda data: b"[" * 200_000 + b"\n",
    "NaN": lambda data: b'{"params": NaN}\n',
}
# Of files whose keys may all be missing another object is one, a table holds what it holds, and a
# last line without its end is still being written.
TABLE = {"cut in half", "a list", "another object", "nested", "NaN"}
HARMLESS = {
    **dict.fromkeys(("prediction.json", "validation.json", "sweep.json"), {"another object"}),
    **dict.fromkeys(("runs.csv", "held_out.csv"), TABLE - {"cut in half"}),
    "metrics.jsonl": {"another object", "cut in half"},
}
ABLATION = {
    "baseline": "fresh", "diverged": [],
    "variants": [
        {"variant": name, "settings": {"optim.staleness": late}, "n_params": 100,
         "losses": {"0": 2.0 + late, "1": 2.1}, "n": 2, "mean": 2.0, "stderr": 0.1,
         "interval_95": [1.9, 2.1], "difference": None}
        for name, late in (("fresh", 0), ("late", 1))
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = fake_sweep.make(tmp_path_factory.mktemp("sweep") / "fake", bootstrap=25)
    (made / "validation.json").write_text('{"chosen": "chinchilla", "largest_budget_error": {}}')
    return made


@pytest.mark.parametrize("name", [
    "law.json", "plan.json", "prediction.json", "validation.json", "sweep.json", "bootstrap.csv",
    "isoflop/law.json", "isoflop/bootstrap.csv", "runs.csv", "held_out.csv", "result.json",
    "metrics.jsonl",
])  # fmt: skip
def test_a_report_names_the_damaged_file(name, folder, monkeypatch):
    monkeypatch.setattr(gallery, "FITTED", {})
    path = folder / name
    if name in ("result.json", "metrics.jsonl"):
        path = sorted((folder / "runs").iterdir())[1] / name
    whole = path.read_bytes()
    reads = report_file.write
    if name in ("law.json", "bootstrap.csv", "isoflop/bootstrap.csv"):  # else a page without a law
        reads = lambda folder: sweep_folder.material(folder / "law.json", folder / "runs.csv")
    try:
        for damage in DAMAGE.keys() - HARMLESS.get(name, set()):
            path.write_bytes(DAMAGE[damage](whole))
            with pytest.raises(BadInput, match=f"{re.escape(str(path))} .*[;:] .*") as error:
                reads(folder)
            assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 500, damage
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("change, words", [
    (lambda found: found["variants"][1].pop("losses"), r"it lacks variants\[1\].losses"),
    (lambda found: found.update(baseline="other"), "the baseline 'other' is none of its variants"),
    (lambda found: found["variants"][0].update(mean="two"), "variants.0..mean is 'two', not a num"),
    (lambda found: found.update(diverged=None), "diverged is null, not a list"),
    (lambda found: found["variants"][0].update(interval_95=[1.0]), "has 1 values instead of 2"),
])  # fmt: skip
def test_an_ablation_names_the_place_of_the_damage(change, words, tmp_path):
    found = copy.deepcopy(ABLATION)
    (tmp_path / "ablation.json").write_text(json.dumps(found))
    assert sweep_folder.ablation(tmp_path) == found
    change(found)
    (tmp_path / "ablation.json").write_text(json.dumps(found))
    with pytest.raises(BadInput, match=words):
        sweep_folder.ablation(tmp_path)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_plan_names_the_damaged_law_and_its_samples(damage, folder):
    for name in ("law.json", "bootstrap.csv"):
        whole = (folder / name).read_bytes()
        try:
            (folder / name).write_bytes(DAMAGE[damage](whole))
            with pytest.raises(BadInput, match=f"{name} (is damaged|does not hold)") as error:
                read_law(str(folder))
        finally:
            (folder / name).write_bytes(whole)
        assert len(str(error.value).splitlines()) == 1


def test_samples_that_are_cut_short_are_not_taken_for_fewer(folder):
    path = folder / "bootstrap.csv"
    whole = path.read_bytes()
    try:
        for cut in (whole[: whole.index(b"\n", 300) + 1], whole[:-3]):
            path.write_bytes(cut)
            with pytest.raises(BadInput, match="of the 25 samples|its last line has no end"):
                read_law(str(folder))
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("value, pattern, words", [
    ({"n": {"value": None}}, {"n": {"value": POSITIVE}}, "n.value is null, not a number above 0"),
    ({"n": 0}, {"n": POSITIVE}, "n is 0, not a number above 0"),
    ({"n": True}, {"n": NUMBER}, "n is true, not a number"),
    ({"n": 1.5}, {"n": WHOLE}, "n is 1.5, not a whole number"),
    ({"n": 10**400}, {"n": NUMBER}, "not a number"),
    ({"n": "\ud800"}, {"n": TEXT}, "not text"),
    ({"n": [1, "2"]}, {"n": [NUMBER]}, r"n\[1\] is '2', not a number"),
    ({}, {"n": NUMBER}, "it lacks n"),
    ({}, {"n?": NUMBER}, None),
    ({"n": None, "m": 3}, {"n": Maybe(NUMBER), ...: Maybe(NUMBER)}, None),
    ({"n": [1, 2]}, {"n": (NUMBER, NUMBER)}, None),
])  # fmt: skip
def test_a_value_is_what_its_pattern_says(value, pattern, words):
    if words is None:
        assert match(value, pattern) is None
    else:
        with pytest.raises(Unfit, match=words):
            match(value, pattern)
