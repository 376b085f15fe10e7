"""Predicted scaling: the curves, what is drawn on them, and the command."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.configs import tiny
from launch import asked
from launch import curves as c
from lm.config import freeze, to_dict
from lm.errors import BadInput

ROOT = Path(__file__).parents[1]


def config(**changes):
    file = tiny.get_config()
    sizes = {
        "vocab_size": 512, "d_model": 4096, "n_layers": 8, "n_heads": 32, "max_length": 1024,
        "attention": "splash", "scan_layers": True, "remat": True,
    }  # fmt: skip
    for key, value in sizes.items():
        file.model[key] = value
    file.precision.compute = file.precision.reduce = "bfloat16"
    file.train.batch_size = 64
    for key, value in changes.items():
        group, field = key.split("__")
        file[group][field] = value
    return freeze(file)


@pytest.fixture(scope="module")
def rows():
    return c.curves(config(), "v5p", 2)


def line(rows, mode, family):
    return [r for r in rows if (r["mode"], r["family"]) == (mode, c.FAMILIES[family].name)]


def test_a_line_begins_at_one_and_keeps_its_batch_rule(rows):
    for mode in c.MODES:
        for family in range(3):
            points = line(rows, mode, family)
            assert points[0]["efficiency"] == 1 and points[0]["chips"] == 16
            first = points[0]["tokens_per_second_per_chip"]
            for row in points:
                wanted = 2 * row["chips"] if mode == "weak" else 64
                assert row["batch_size"] == wanted
                assert row["data"] * row["model"] * row["pipe"] == row["chips"]
                assert row["efficiency"] == pytest.approx(row["tokens_per_second_per_chip"] / first)
                assert 0 < row["mfu"] < 1


def test_weak_lines_reach_4096_chips_and_strong_ones_end_with_the_batch(rows):
    assert all(line(rows, "weak", family)[-1]["chips"] == 4096 for family in range(3))
    # 64 sequences: 64 data devices, times 4 along the other axis.
    assert [line(rows, "strong", family)[-1]["chips"] for family in range(3)] == [64, 256, 256]


def test_fixed_work_on_more_chips_costs_efficiency(rows):
    data = [r["efficiency"] for r in line(rows, "strong", 0)]
    assert data == sorted(data, reverse=True)
    # One micro-batch at the end: three of four stages always wait.
    last = line(rows, "strong", 2)[-1]
    assert last["microbatches"] == 1 and last["idle"] == pytest.approx(0.75, abs=0.02)
    assert last["efficiency"] < 0.5


def test_weak_scaling_on_whole_tori_is_flat(rows):
    torus = [r["efficiency"] for r in line(rows, "weak", 0) if r["chips"] >= 64]
    assert max(torus) / min(torus) < 1.05


def report(row, seconds, **changes):
    return {
        "chip": "v5p",
        "n_chips": row["chips"],
        "batch_size": row["batch_size"],
        "mesh": {axis: row[axis] for axis in ("data", "model", "pipe")},
        "fully_sharded": True,
        "config": to_dict(config()),
        "predicted": {
            "step_seconds": seconds,
            "mfu": 0.4,
            "tokens_per_second": row["batch_size"] * 1024 / seconds,
        },
    } | changes


def test_a_compiled_program_stands_beside_its_point_only(monkeypatch):
    monkeypatch.setattr(c, "SIZES", [16, 64])
    plain = c.curves(config(), "v5p", 2)
    row = line(plain, "weak", 2)[1]
    slower = report(row, 2 * row["step_seconds"])
    others = [
        report(row, 1.0, chip="v5e"), report(row, 1.0, batch_size=7),
        report(row, 1.0, fully_sharded=False), report(row, 1.0, n_chips=8),
    ]  # fmt: skip
    marked = c.curves(config(), "v5p", 2, [*others, slower])
    beside = [r for r in marked if r["compiled_step_seconds"]]
    assert len(beside) == 1 and beside[0]["family"] == c.FAMILIES[2].name
    assert beside[0]["compiled_efficiency"] == pytest.approx(beside[0]["efficiency"] / 2)
    assert "compiled: weak, data x pipe 4, 1F1B, 64 chips" in c.text(marked)


def test_text_and_chart_show_every_line(rows, tmp_path):
    lines = c.text(rows).splitlines()
    assert len(lines) == 7 and lines[0].split()[1:] == [str(n) for n in c.SIZES]
    assert lines[4].split()[-6:] == ["-"] * 6  # strong, fully sharded: nothing above 64 chips
    drawn = c.figure(rows, "v5p")
    efficiency = drawn.axes[0]
    assert [len(line.get_xdata()) for line in efficiency.get_lines()] == [9, 9, 9]
    assert efficiency.get_ylim()[1] > max(r["efficiency"] for r in rows)
    c.chart(rows, "v5p", tmp_path / "e.png")
    assert (tmp_path / "e.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(BadInput, match="cannot be written .*another --out"):
        c.chart(rows, "v5p", tmp_path / "e.png" / "e.png")


def test_a_model_that_fits_nowhere_is_a_sentence():
    with pytest.raises(BadInput, match="no layout of these kinds fits 16 to 4096 chips of v5e"):
        c.curves(config(model__max_length=2**20), "v5e", 1)


def test_lines_end_where_the_network_has_no_published_bandwidth(monkeypatch, capsys):
    monkeypatch.setattr(c, "SIZES", [128, 256, 512])
    rows = c.curves(config(), "v3", 4)
    assert {r["chips"] for r in rows} <= {128, 256}
    assert "between slices is not published: lines end at 256 chips" in capsys.readouterr().err
    with pytest.raises(BadInput, match="h100_pcie between slices is not published, which 128"):
        c.curves(config(), "h100_pcie", 4)


def command(*args):
    run = [sys.executable, "-m", "launch.efficiency", *args]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, env=os.environ.copy())


def test_the_command_writes_its_table_and_tells_mistakes(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config())))
    given = (f"--config={tmp_path / 'config.json'}", "--rows=2")
    done = command(*given, "--chip=v5p", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    written = list(csv.DictReader((tmp_path / "out" / "efficiency.csv").read_text().splitlines()))
    assert {row["mode"] for row in written} == {"weak", "strong"}
    assert (tmp_path / "out" / "efficiency.png").stat().st_size > 10_000
    wrong = command(*given, "--chip=v9")
    assert wrong.returncode == 2 and "the chip is one of" in wrong.stderr
    for content in ("", "[]", "{}"):
        (tmp_path / "compile.json").write_text(content)
        with pytest.raises(BadInput, match="is no compile.json of launch.compile"):
            asked.report(str(tmp_path / "compile.json"))


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path):
    asked.write(tmp_path / "new", {"a.json": "old"})
    with pytest.raises(UnicodeEncodeError):
        asked.write(tmp_path / "new", {"a.json": "half\ud800"})
    assert [p.read_text() for p in (tmp_path / "new").iterdir()] == ["old"]
    with pytest.raises(BadInput, match="cannot be written .*another --out"):
        asked.write(tmp_path / "new" / "a.json", {"b.json": ""})
