"""The compile command: its numbers against hand arithmetic, its failures as sentences."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from experiments.configs import tiny
from launch import compiled, topology
from launch.apart import apart
from launch.gpu_target import target_config
from launch.paper import on_paper
from launch.report_text import size, text
from launch.roofline import SLOW, predict
from launch.tally import Collective, Tally, parse_groups
from lm import budget, chips
from lm.config import freeze
from lm.errors import BadInput, CannotFinish
from lm.layout import make_layout

ROOT = Path(__file__).parents[1]
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def run(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "launch.compile", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ.copy())


def tiny_config(**changes):
    file = tiny.get_config()
    file.model.vocab_size = 256
    for key, value in changes.items():
        group, field = key.split("__")
        file[group][field] = value
    return freeze(file)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """compile.json of `tiny` for four chips, each layer recomputed and looped over."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    out = tmp_path_factory.mktemp("compile")
    done = run(
        "--config=experiments/configs/tiny.py",
        "--topology=v5e:2x2",
        f"--out={out}",
        "--config.mesh.data=4",
        "--config.model.vocab_size=256",
        "--config.model.scan_layers=true",
        "--config.model.tie_embeddings=false",
        "--config.precision.compute=bfloat16",
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "E0000" not in done.stderr
    found = json.loads((out / "compile.json").read_text())
    assert text(found) == done.stdout.rstrip("\n")
    return found


def test_memory_of_a_device_is_what_its_shapes_take(report):
    c = freeze(report["config"])
    b = report["bytes_per_device"]
    # Matrices are sharded over 4 devices; norms (2 a layer and the last) are on each.
    norms = (2 * c.model.n_layers + 1) * c.model.d_model
    values = (budget.n_params(c.model) - norms) // 4 + norms
    assert b["parameters"] == 4 * values
    assert b["optimizer"] == 2 * 4 * values + 4  # two moments and a count
    batch = 3 * 4 * (c.train.batch_size // 4) * c.length  # inputs, targets, weights
    # The program's arguments are padded to the chip's tiles, and so larger.
    assert b["arguments"] >= b["parameters"] + b["optimizer"] + 4 + batch
    assert b["limit"] == int(15.75 * 2**30) and 0 < b["temporaries"] < b["limit"]
    assert 0 < b["peak"] < b["limit"]


def test_flops_executed_are_the_models_and_the_whole_square_of_attention(report):
    c, f = freeze(report["config"]), report["flops"]
    tokens = c.train.batch_size * c.length
    assert report["tokens_per_step"] == tokens
    assert f["model"] == pytest.approx(budget.flops_per_token(c.model, c.length) * tokens)
    # 32 tokens are one block: attention multiplies the whole square. The input of the first layer
    # needs no products of its own, and nothing is recomputed.
    square = budget.flops_per_token(c.model, c.length, full_attention=True) * tokens
    assert f["executed"] == pytest.approx(square, rel=1e-6)
    assert f["ratio"] == pytest.approx(square / f["model"], rel=1e-6)
    assert f["busiest_ratio"] == pytest.approx(f["ratio"])
    outside = f["model_outside_attention"]  # which the model's own scope tells
    assert f["executed_outside_attention"] == pytest.approx(outside, rel=1e-6)
    assert f["custom_calls"] == {}


def test_bytes_that_cross_devices_are_those_of_the_weights(report):
    c = freeze(report["config"])
    m, norms = c.model, (2 * c.model.n_layers + 1) * c.model.d_model
    # All matrices but the embedding: 64 tokens a device are fewer than its 256 rows, so tokens'
    # rows cross devices instead of it.
    matrices = budget.n_params(m) - norms - 256 * m.d_model
    rows = report["collectives"]
    assert {row["axis"] for row in rows} == {"data"} and {row["group"] for row in rows} == {4}
    of = lambda *kinds: sum(row["tensor_bytes"] for row in rows if row["kind"] in kinds)
    # Gathered in bfloat16, once or again for the backward pass, and every device's tokens.
    tokens = 4 * report["tokens_per_step"]
    assert 2 * matrices + tokens <= of("all-gather") <= 2 * 2 * matrices + tokens
    # Reduced once in float32, with the norms' gradients and a few scalars.
    reduced = 4 * (matrices + norms)
    assert reduced <= of("reduce-scatter", "all-reduce") <= reduced + 256
    # Each device's tokens' rows in bfloat16, and their gradients.
    assert of("all-to-all") == 2 * 2 * (report["tokens_per_step"] // 4) * m.d_model
    for row in rows:
        share = 1.5 if row["kind"] == "all-reduce" else 0.75
        assert row["wire_bytes"] == pytest.approx(share * row["tensor_bytes"])


def test_prediction_and_plan_follow_from_the_counts(report):
    p, chip = report["predicted"], chips.named("v5e")
    assert p["seconds"]["compute"] == pytest.approx(
        report["flops"]["busiest_device"] / chip.peaks["bfloat16"]
    )
    assert p["seconds"]["memory"] == pytest.approx(report["hbm_bytes"] / chip.hbm_bandwidth)
    sent = sum(row["wire_bytes"] for row in report["collectives"])
    # 2 x 2 chips, no rings: one link each way along two dimensions.
    assert p["seconds"]["data"] == pytest.approx(sent / (2 * chip.link_bandwidth))
    assert max(p["seconds"].values()) <= p["step_seconds"] * (1 + 1e-9)
    assert p["seconds"][p["bound"]] == max(p["seconds"].values())
    assert p["tokens_per_second"] == pytest.approx(report["tokens_per_step"] / p["step_seconds"])
    assert p["mfu"] == pytest.approx(
        report["flops"]["model"] / (p["step_seconds"] * 4 * chip.peaks["bfloat16"])
    )
    assert p["days"] * 86400 == pytest.approx(p["planned_tokens"] / p["tokens_per_second"])
    assert p["energy_mwh"] is None and any("power" in w for w in report["warnings"])
    assert report["compile_seconds"] > 0 and report["versions"]["jax"] == jax.__version__


class Lowered(Exception):
    """Ends training where it would compile."""


def test_training_and_compile_lower_to_the_same_text(tmp_path, monkeypatch):
    from lm.train import loop, run

    (tmp_path / "text.txt").write_text("All work and no play makes Jack a dull boy. " * 200)
    data = {"data__source": "files", "data__path": str(tmp_path / "text.txt"), "mesh__data": 4}
    jitted = loop.jit_step

    def stopping(*args):
        class Step:
            def lower(self, *shapes):
                raise Lowered(jitted(*args).lower(*shapes).as_text())

        return Step()

    monkeypatch.setattr(loop, "jit_step", stopping)
    with pytest.raises(Lowered) as e:
        run.train(tiny_config(**data, model__vocab_size=None), tmp_path / "run")
    c = tiny_config(**data, model__vocab_size=256)  # bytes
    lowered, _ = compiled.lower(c, make_layout(c.mesh, jax.devices()))
    assert lowered.as_text() == e.value.args[0]
    other = tiny_config(**data, optim__clip_norm=None)
    assert compiled.lower(other, make_layout(c.mesh, jax.devices()))[0].as_text() != e.value.args[0]


# Failures


@pytest.mark.parametrize(
    "name, said",
    [
        ("banana", "names no machine"),
        ("v9:2x2", "the chip is one of"),
        ("h100:2x4", "no grid"),
        ("v5e:0x4", "names no machine"),
        pytest.param("v5e:3x5", "not divisible", marks=needs_libtpu),
        pytest.param("v5p:4x4x4x4", "Invalid topology", marks=needs_libtpu),
    ],
)
def test_a_wrong_topology_is_one_sentence(name, said):
    with pytest.raises(BadInput, match=said) as e:
        topology.machine(name)
    assert f"--topology={name}" in str(e.value) and "\n" not in str(e.value)


def test_a_missing_compiler_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name)
    )
    with pytest.raises(BadInput, match=r"\.\[tpu\]"):
        topology.machine("v5e:2x2")


@needs_libtpu
def test_a_step_that_does_not_fit_says_both_numbers_and_leaves_nothing(tmp_path):
    done = run(
        "--config=experiments/configs/tiny.py",
        "--topology=v5e:1x1",
        f"--out={tmp_path / 'out'}",
        "--config.model.vocab_size=256",
        "--config.model.n_layers=1",
        "--config.model.d_model=16384",
    )
    assert done.returncode == 2
    told = done.stderr.splitlines()[-1]
    assert "does not fit v5e:1x1" in told and "which has 15.75 GiB" in told and "remat" in told
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


def test_flags_are_checked_before_anything_is_compiled(tmp_path):
    config = "--config=experiments/configs/tiny.py"
    no_vocabulary = run(config, "--topology=v5e:2x2")
    assert no_vocabulary.returncode == 2 and "model.vocab_size is none" in no_vocabulary.stderr
    no_machine = run(config, "--config.model.vocab_size=256")
    assert no_machine.returncode == 2 and "no machine given" in no_machine.stderr


@needs_libtpu
def test_compiler_errors_become_sentences():
    m = topology.machine("v5e:2x2")
    used = compiled.explained("RESOURCE_EXHAUSTED: Used 20.95G of 15.75G hbm.", m)
    assert isinstance(used, BadInput) and "20.95 GiB on each device, which has 15.75" in str(used)
    bug = compiled.explained("INTERNAL: buffer overlaps with another chunk\nstack\nof lines", m)
    assert isinstance(bug, CannotFinish) and "overlaps with another chunk" in str(bug)
    assert "\n" not in str(bug)


ABORT = """import os
os.write(2, b"noise\\nF0000 00:00:00 chunk.cc:1] Check failed: a == b\\n")
os.abort()"""
REFUSE = "from lm.errors import BadInput; raise BadInput('one sentence')"


def test_a_process_that_aborts_is_one_sentence_and_errors_come_back():
    with pytest.raises(CannotFinish, match="compiling: .*Check failed: a == b"):
        apart("compiling", exec, ABORT)
    with pytest.raises(BadInput, match="one sentence"):
        apart("compiling", exec, REFUSE)
    assert apart("compiling", max, 2, 3) == 3


# The roofline


def machine_of(name, n):
    """A machine without its compiler: devices are places on the grid."""
    chip, shape, slices = topology.read_name(name)

    class Device:
        platform = "tpu" if chip.ring else "gpu"

        def __init__(self, i):
            across = shape + (1, 1)
            tpu = (i % across[0], i // across[0] % across[1], i // (across[0] * across[1]))
            self.coords = tpu if chip.ring else (i // shape[0], 0, i % shape[0])

    return topology.Machine(name, chip, shape, slices, [Device(i) for i in range(n)])


def exchange(kind, groups_text, n, tensor_bytes, overlapped, slow=False):
    groups = None if slow else parse_groups(groups_text, n)
    size = 2 if slow else groups.size
    return Collective(kind, groups, groups_text, tensor_bytes, overlapped, slow, size)


def test_the_slowest_resource_bounds_the_step_and_exposed_exchanges_come_on_top():
    m = machine_of("v5p:4x4x4", 64)
    mesh = {"data": 16, "model": 1, "pipe": 4}  # pipe is x, data is y and z
    chip = m.chip
    along_data = "replica_groups=[4,16]<=[16,4]T(1,0), x=1"
    pairs = "source_target_pairs={" + ",".join(
        f"{{{i},{i // 4 * 4 + (i + 1) % 4}}}" for i in range(64)
    ) + "}"  # fmt: skip
    gather = exchange("all-gather", along_data, 64, 16e9, True)
    permute = exchange("collective-permute", pairs, 64, 1e9, False)
    t = Tally(matmul_flops=459e12 * 0.2, hbm_bytes=2.765e12 * 0.1)
    t.collectives[gather] = 2
    t.collectives[permute] = 3
    p = predict(t, m, mesh, m.devices, "bfloat16")
    assert p.seconds["compute"] == pytest.approx(0.2)
    assert p.seconds["memory"] == pytest.approx(0.1)
    # Two rings, both ways: four links. A permute has one.
    assert p.seconds["data"] == pytest.approx(2 * 15e9 / (4 * chip.link_bandwidth))
    assert p.seconds["pipe"] == pytest.approx(3 * 1e9 / chip.link_bandwidth)
    assert p.exposed == pytest.approx(p.seconds["pipe"])
    assert p.step == pytest.approx(0.2 + p.exposed)
    assert p.bound == "compute" and p.unknown == ()
    t.collectives[gather] = 20
    p = predict(t, m, mesh, m.devices, "bfloat16")
    assert p.bound == "data" and p.step == pytest.approx(p.seconds["data"] + p.exposed)


def test_the_network_between_slices_is_named_and_a_missing_number_is_said():
    mesh = {"data": 4, "model": 1, "pipe": 1}
    far = exchange("all-reduce", "x", 4, 1e9, True, slow=True)
    t = Tally(matmul_flops=1e12)
    t.collectives[far] = 1
    v5e, v4 = machine_of("2xv5e:2x2", 8), machine_of("2xv4:2x2x1", 8)
    p = predict(t, v5e, mesh, v5e.devices[:4], "bfloat16")
    assert p.seconds[SLOW] == pytest.approx(1e9 / v5e.chip.slow_bandwidth) and p.bound == SLOW
    p = predict(t, v4, mesh, v4.devices[:4], "bfloat16")
    assert SLOW not in p.seconds and "between slices" in p.unknown[0]
    p = predict(Tally(1e12), v4, mesh, v4.devices[:4], "float16")
    assert "compute" not in p.seconds and "float16" in p.unknown[0]


def test_an_exchange_over_boxes_of_gpus_goes_over_both_networks():
    m, mesh = machine_of("2xh100:8", 16), {"data": 16, "model": 1, "pipe": 1}
    t = Tally(matmul_flops=1e12)
    t.collectives[exchange("all-gather", "replica_groups=[1,16]<=[16], x=1", 16, 16e9, False)] = 1
    p = predict(t, m, mesh, m.devices, "bfloat16")
    # A device gets its eighth of the other box's half, then shares with the seven beside it.
    assert p.seconds[SLOW] == pytest.approx(2e9 / 2 / m.chip.slow_bandwidth)
    assert p.seconds["data"] == pytest.approx(16e9 * 7 / 8 / m.chip.link_bandwidth)
    t = Tally(matmul_flops=1e12)
    pairs = "source_target_pairs={{0,8},{8,0}}"
    t.collectives[exchange("collective-permute", pairs, 16, 1e9, False)] = 1
    p = predict(t, m, mesh, m.devices, "bfloat16")
    assert p.seconds[SLOW] == pytest.approx(1e9 / m.chip.slow_bandwidth) and "data" not in p.seconds


def test_every_link_inside_a_slice_is_used_also_where_there_are_several():
    def inside(name: str, kind: str) -> float:
        m = on_paper(name)
        n = len(m.devices)
        t = Tally()
        t.collectives[exchange(kind, f"replica_groups=[1,{n}]<=[{n}], x=1", n, 16e9, False)] = 1
        return predict(t, m, {"data": n}, m.devices, "bfloat16").seconds["data"]

    for kind, shape in (("all-gather", "v5e:4x4"), ("all-reduce", "v5e:16x16")):
        assert inside(f"2x{shape}", kind) == pytest.approx(inside(shape, kind))


def test_every_gpu_has_a_target():
    for chip in chips.CHIPS:
        if not chip.ring:
            target = target_config(chip)
            assert f"device_memory_size: {int(chip.hbm_limit)}" in target
            assert f'"{chip.kinds[0]}"' in target


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="no compiler for GPUs"
)
def test_gpus_compile_where_their_compiler_is_installed(tmp_path):
    config = ("--config=experiments/configs/tiny.py", "--config.model.vocab_size=256")
    done = run(*config, "--topology=2xh100:4", f"--out={tmp_path}", "--config.mesh.data=8")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "compile.json").read_text())
    assert found["n_slices"] == 2 and found["slow_axis"] == "data"
    assert {row["network"] for row in found["collectives"]} == {"between slices"}
    assert found["flops"]["ratio"] == pytest.approx(1.0584, rel=1e-3)


def test_sizes_are_written_as_people_write_them():
    assert [size(n) for n in (0, 1023, 1536, 24.4 * 2**30, 5e12)] == [
        "0 B",
        "1,023 B",
        "1.50 KiB",
        "24.40 GiB",
        "4,656.61 GiB",
    ]


def test_rings_are_those_of_real_slices():
    of = lambda name: topology.rings(*topology.read_name(name)[:2])
    assert of("v5p:4x4x4") == (True, True, True) and of("v5p:4x4x2") == (False,) * 3
    assert of("v5e:16x16") == (True, True) and of("v5e:8x16") == (False, True)
    assert topology.read_name("2xv5e:16x16")[2] == 2
