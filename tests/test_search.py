"""The search for a layout: what is legal, how it is ranked, and the command."""

import csv
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config_source import parse
from experiments.configs import tiny
from launch.estimate import Estimator
from launch.layouts import Choice, Layouts, choices, divisors, meshes
from launch.paper import on_paper
from launch.ranking import TIE, nothing_fits, preferred, rank
from launch.roofline import SLOW
from launch.search_text import best, sentence, table
from launch.trials import compile_best
from lm.config import FUSED_ATTENTION, MeshConfig, freeze, to_dict
from lm.errors import BadInput, CannotFinish
from lm.layout import make_layout
from lm.train.setup import build, check
from lm.train.state import param_specs

ROOT = Path(__file__).parents[1]


def config(**changes):
    file = tiny.get_config()
    file.model.vocab_size = 256
    for key, value in changes.items():
        group, field = key.split("__")
        file[group][field] = value
    return freeze(file)


def all_choices(c, machine):
    return [x for mesh in meshes(len(machine.devices)) for x in choices(c, mesh)]


# What is legal


@pytest.mark.parametrize("n", [1, 6, 8, 64])
def test_every_product_of_three_axes_is_asked(n):
    products = {(d, m, n // d // m) for d in divisors(n) for m in divisors(n // d)}
    asked = list(meshes(n))
    assert {mesh[:3] for mesh in asked} == products and len(asked) == len(set(asked))
    for data, model, pipe in products:
        wanted = {True, False} if data > 1 else {True}
        assert {mesh[3] for mesh in asked if mesh[:3] == (data, model, pipe)} == wanted


def test_what_is_legal_trains_and_what_is_not_is_refused_by_training_itself():
    c, machine = (
        config(model__n_layers=4, model__n_heads=4, model__n_kv_heads=2),
        on_paper("v5e:2x4"),
    )
    layouts = Layouts(to_dict(c), machine)
    legal = 0
    asked = all_choices(c, machine)
    for choice in asked:
        values = to_dict(c)
        for key, value in choice.settings().items():
            group, field = key.split(".")
            values[group][field] = value
        candidate = layouts.candidate(choice)
        try:
            mine = freeze(values)
            run = build(mine, None, make_layout(mine.mesh, machine.devices))
            param_specs(run.model.table, run.layout)
        except BadInput:
            assert candidate is None, choice
        else:
            assert candidate is not None and candidate.config == mine, choice
            legal += 1
    assert layouts.refused == len(asked) - legal and legal > 100 and layouts.refused > 20
    # Every schedule, both ways to keep activations, sharded or not.
    found = [x for x in asked if x.data > 1 and layouts.candidate(x)]
    for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble", None):
        for recompute in (True, False):
            alike = [x for x in found if (x.schedule, x.recompute) == (schedule, recompute)]
            assert {x.fully_sharded for x in alike} == {True, False}


def test_kernels_of_another_platform_are_refused():
    for attention, platform in FUSED_ATTENTION.items():
        c = config(model__attention=attention, model__max_length=128)
        layouts = Layouts(to_dict(c), on_paper("v5e:2x2"))
        found = layouts.candidate(Choice(4, 1, 1, True, 1, False))
        assert (found is not None) == (platform == "tpu")


@pytest.mark.parametrize(
    "name, kernel, can, cannot, words",
    [
        ("h100:8", "cudnn", {"precision__compute": "float16"}, {"precision__compute": "float32"},
         "computes in 16 bits and precision.compute is float32"),
        ("v5e:2x2", "splash", {"model__max_length": 384}, {"model__max_length": 100},
         "and these have 100"),
        ("v5e:2x2", "splash", {"data__length": 1024, "model__max_length": 1024},
         {"data__length": 640, "model__max_length": 1024}, "and these have 640"),
    ],
)  # fmt: skip
def test_what_a_kernel_does_not_compute_is_refused(name, kernel, can, cannot, words):
    layout = make_layout(MeshConfig(), on_paper(name).devices)
    check(config(model__attention=kernel, **can), layout)
    with pytest.raises(BadInput, match=words):
        check(config(model__attention=kernel, **cannot), layout)


def test_the_line_to_paste_makes_the_config_of_the_candidate():
    c, machine = config(model__n_layers=4, model__n_heads=4), on_paper("v5e:2x2")
    layouts = Layouts(to_dict(c), machine)
    for choice in all_choices(c, machine):
        candidate = layouts.candidate(choice)
        if candidate:
            values = to_dict(c)
            for flag in choice.line().split():
                key, value = flag.removeprefix("--config.").split("=")
                group, field = key.split(".")
                values[group][field] = parse(key, value, "the line")
            assert freeze(values) == candidate.config


# Ranking


@pytest.fixture(scope="module")
def ranking():
    return rank(config(model__n_layers=4, model__n_heads=4), on_paper("v5e:2x4"))


def test_ranking_goes_by_time_and_one_of_each_mesh_stands_for_it(ranking):
    steps = [float(f"{r.step:.9g}") for r in ranking.fitting]
    assert steps == sorted(steps) and not ranking.too_large
    found = ranking.of_meshes()
    assert {r.candidate.choice.mesh for r in found} == {
        r.candidate.choice.mesh for r in ranking.fitting
    }
    for r in found:
        group = [x for x in ranking.fitting if x.candidate.choice.mesh == r.candidate.choice.mesh]
        fastest = min(x.step for x in group)
        near = [x for x in group if x.step <= fastest * (1 + TIE)]
        assert r.estimate.peak == min(x.estimate.peak for x in near)


def test_gpipe_is_never_better_than_1f1b(ranking):
    by_choice = {r.candidate.choice: r for r in ranking.fitting}
    compared = 0
    for choice, r in by_choice.items():
        if choice.schedule == "gpipe" and choice.microbatches == 8:
            other = by_choice[dataclasses.replace(choice, schedule="1f1b")]
            assert r.step >= other.step and r.estimate.peak > other.estimate.peak
            assert preferred([r, other])[0] is other
            compared += 1
    assert compared > 2


def test_of_equal_steps_the_smaller_wins():
    found = [(1.0, 30), (1.005, 20), (1.02, 10)]
    assert preferred(found, step=lambda r: r[0], memory=lambda r: r[1]) == ((1.005, 20), 2)
    assert preferred(found[:1], step=lambda r: r[0], memory=lambda r: r[1]) == ((1.0, 30), 1)


def test_computing_again_does_more_and_keeps_less(ranking):
    by_choice = {r.candidate.choice: r for r in ranking.fitting}
    for choice, r in by_choice.items():
        if choice.recompute:
            kept = by_choice[dataclasses.replace(choice, recompute=False)]
            assert r.estimate.executed > kept.estimate.executed
            assert r.estimate.memory["kept"] < kept.estimate.memory["kept"]


def large(**changes):
    """A model large enough for a chip's units: 100 million parameters a layer."""
    sizes = {
        "model__d_model": 3072, "model__n_layers": 8, "model__n_heads": 24,
        "model__max_length": 2048, "model__attention": "splash", "model__scan_layers": True,
        "precision__compute": "bfloat16", "precision__reduce": "bfloat16",
        "train__batch_size": 64,
    }  # fmt: skip
    return config(**sizes | changes)


def step(c, machine, **choice):
    found = Layouts(to_dict(c), machine).candidate(Choice(**choice))
    return Estimator(machine)(found)


def test_long_batches_want_no_model_axis():
    found = rank(large(train__batch_size=32), on_paper("v5e:2x4")).fitting
    by_model = {}
    for choice, step_seconds in ((r.candidate.choice, r.step) for r in found):
        if choice.pipe == 1 and choice.recompute:  # a model axis may fit what is kept otherwise
            by_model.setdefault(choice.model, step_seconds)
    assert list(by_model) == sorted(by_model)  # every doubling of the model axis costs time
    assert found[0].estimate.prediction.bound == "compute"


def test_few_sequences_want_a_model_axis_or_stages():
    # Data parallelism ends at one sequence a device: 4 sequences on 16 chips.
    found = rank(large(train__batch_size=4), on_paper("v5p:4x4x4")).of_meshes()
    assert all(r.candidate.choice.data <= 4 for r in found)
    assert found[0].candidate.choice.model >= 4


def test_memory_forces_sharding():
    ranking = rank(large(model__n_layers=16, train__batch_size=16), on_paper("v5e:2x4"))
    # 1.8e9 parameters take 27 GiB of state and gradients, a chip has 15.75.
    assert all(
        r.candidate.choice.fully_sharded or r.candidate.choice.data < 8 for r in ranking.fitting
    )
    assert any(not r.candidate.choice.fully_sharded for r in ranking.too_large)


def test_stages_cross_the_slow_network_rather_than_gradients():
    c, machine = large(model__max_length=512), on_paper("2xv5e:4x4")
    stages = step(c, machine, data=16, model=1, pipe=2, fully_sharded=False, microbatches=4,
                  recompute=True, schedule="1f1b")  # fmt: skip
    rows = step(c, machine, data=32, model=1, pipe=1, fully_sharded=False, microbatches=1,
                recompute=True)  # fmt: skip
    assert stages.prediction.seconds[SLOW] < rows.prediction.seconds[SLOW] / 2


def test_a_choice_made_twice_is_made_alike():
    c, machine = config(), on_paper("v5e:2x2")
    one, two = rank(c, machine), rank(c, machine)
    assert [r.candidate.choice for r in one.fitting] == [r.candidate.choice for r in two.fitting]


# Failures and text


def test_nothing_legal_and_nothing_fitting_are_a_sentence():
    with pytest.raises(BadInput, match="none of .* layouts .* the first refusal: .*accumulate"):
        rank(config(train__batch_size=1, model__n_heads=1, model__n_layers=1), on_paper("v5e:2x2"))
    machine = on_paper("v5e:1x1")
    ranking = rank(config(model__n_layers=1, model__d_model=16384), machine)
    assert not ranking.fitting
    said = str(nothing_fits(ranking, machine))
    assert "no layout fits v5e:1x1" in said and "which has 15.75 GiB" in said and "\n" not in said


def said(step, peak):
    return {"predicted": {"step_seconds": step, "mfu": 0.5}, "bytes_per_device": {"peak": peak}}


def test_what_compiling_said_decides(ranking, monkeypatch):
    found = ranking.of_meshes()
    assert best(found, {})["step_is"] == "estimated, not compiled"
    compiled = {0: {"error": "too large"}, 1: said(2.0, 10), 2: said(1.0, 20), 3: said(1.005, 5)}
    chosen = best(found, compiled)
    assert chosen["flags"] == found[3].candidate.choice.line() and chosen["tied"] == 2
    text = sentence(chosen)
    assert "2 layouts are within 1% of the fastest" in text and text.endswith(chosen["flags"])
    shown = table(found, compiled)
    assert "failed" in shown and "1 s, 50.0%" in shown


def test_a_layout_that_the_compiler_refuses_is_passed_over(ranking, monkeypatch):
    found = ranking.of_meshes()

    def compile_or_refuse(words, report, c, topology):
        asked.append(words)
        if len(asked) <= n_refused:
            raise BadInput("does not fit")
        return said(1.0, 1)

    monkeypatch.setattr("launch.trials.apart", compile_or_refuse)
    asked, n_refused = [], 1
    assert [("error" in s) for s in compile_best(found, "v5e:2x4", 2).values()] == [
        True, False, False,
    ]  # fmt: skip
    asked, n_refused = [], 99
    with pytest.raises(CannotFinish, match="none of 4 layouts: does not fit"):
        compile_best(found, "v5e:2x4", 2)
    assert compile_best(found, "v5e:2x4", 0) == {}


# The command


def command(*args):
    run = [sys.executable, "-m", "launch.search", "--config=experiments/configs/tiny.py", *args]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, env=os.environ.copy())


def test_the_command_finds_compiles_and_writes(tmp_path):
    n = int(importlib.util.find_spec("libtpu") is not None)
    done = command(
        "--topology=v5e:2x2", f"--compile={n}", f"--out={tmp_path}",
        "--config.model.vocab_size=256", "--config.precision.compute=bfloat16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "legal layouts, 0 of them too large" in done.stderr and "Traceback" not in done.stderr
    found = json.loads((tmp_path / "search.json").read_text())
    rows = list(csv.DictReader((tmp_path / "search.csv").read_text().splitlines()))
    assert len(rows) == found["legal"] and {row["fits"] for row in rows} == {"True"}
    steps = [float(row["step_seconds"]) for row in rows]
    assert steps[0] == min(steps) and all(float(row["compute_seconds"]) > 0 for row in rows)
    chosen = found["chosen"]
    assert done.stdout.rstrip().endswith(chosen["flags"])
    compiled = [row["compiled"] for row in found["best_of_each_mesh"] if row["compiled"]]
    assert len(compiled) == n
    if n:
        assert chosen["step_is"] == "compiled"
        assert compiled[0]["flops"]["ratio"] > 1


def test_mistakes_are_told_before_anything_is_searched():
    nowhere = command("--config.model.vocab_size=256")
    assert nowhere.returncode == 2 and "no machine given" in nowhere.stderr
    wrong = command("--config.model.vocab_size=256", "--topology=v9:2x2")
    assert wrong.returncode == 2 and "the chip is one of" in wrong.stderr
    assert all("Traceback" not in done.stderr for done in (nowhere, wrong))
