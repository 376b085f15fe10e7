"""Damaged files of a run: told at resume in one sentence, and nothing is lost silently."""

import json

import pytest
from test_start import FACTS
from test_start import config as tiny_config
from test_trunk import config

from lm.errors import BadInput, CannotSave, Diverged
from lm.sweep import table
from lm.sweep.points import Point
from lm.train import workdir
from lm.train.run import train
from lm.train.standing import read_result
from lm.train.workdir import MetricsFile

ROWS = [f'{{"step": {s}, "loss": 1.0}}\n' for s in range(1, 7)]


def kept(path, after: int) -> str:
    MetricsFile(path, after).close()
    return path.read_text()


@pytest.mark.parametrize(
    "rows, number",
    [
        (["\x00" * 30 + "\n", *ROWS], 1),
        ([*ROWS[:2], '{"step": 3, "loss"\n', *ROWS[3:]], 3),
        ([*ROWS[:2], "[1]\n", *ROWS[3:]], 3),
        ([*ROWS[:2], '{"loss": 2}\n'], 3),
        ([*ROWS[:3], "\x00\x00\x00"], 4),
        (["[" * 100_000 + "\n"], 1),
        ([b"\xff\xfe\n"], 1),
        ([b"\xff\xfe"], 1),
    ],
    ids=["zeros", "cut", "list", "no step", "zeros at the end", "deep", "bytes", "one line"],
)
def test_a_damaged_row_is_told_with_its_line_and_nothing_is_changed(tmp_path, rows, number):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(r if isinstance(r, bytes) else r.encode() for r in rows))
    before = path.read_bytes()
    with pytest.raises(BadInput, match=f"^line {number} of .*metrics.jsonl is damaged: restore"):
        kept(path, 5)
    assert path.read_bytes() == before


def test_rows_that_are_written_again_may_be_cut_short_or_damaged(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for rest in ('{"step": 7, "lo', '{"s', "", "\x00\n", "no row\n"):
        path.write_text("".join(ROWS) + rest)
        assert kept(path, 4) == "".join(ROWS[:4])
    path.write_text("".join(ROWS[:5]) + '{"step": 6, "lo')
    assert kept(path, 5) == "".join(ROWS[:5])


WHOLE = {"status": "finished", "n_params": 9, "n_tokens": 8, "flops": 1e3, "flops_6nd": 1e3,
         "eval_loss": 2.0, "train_loss": 2.1, "steps": 8}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps(WHOLE | {"status": "done"}).encode(),
        json.dumps(WHOLE | {"eval_loss": None}).encode(),
        json.dumps(WHOLE | {"n_tokens": "many"}).encode(),
        json.dumps(WHOLE | {"flops": float("nan")}).encode(),
    ],
    ids=["empty", "bytes", "list", "object", "deep", "status", "loss", "word", "nan"],
)
def test_a_damaged_result_is_told_and_counts_for_no_table(tmp_path, content):
    path = tmp_path / "run" / "result.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"result.json .*remove it"):
        read_result(path)
    point = Point("run", "g", tiny_config(), {})
    assert table.result_of(point, tmp_path) is None
    path.write_text(json.dumps(WHOLE))
    assert table.result_of(point, tmp_path) == WHOLE


def test_a_result_is_read_at_resume(tmp_path):
    c = config(8)
    run = tmp_path / "run"
    with pytest.raises(BadInput, match="result.json is damaged"):
        _resumed(c, run, {"status": "finished"})
    with pytest.raises(Diverged, match="diverged at step 8: change the config"):
        _resumed(c, run, WHOLE | {"status": "diverged", "eval_loss": None})
    assert _resumed(c, run, WHOLE) == WHOLE


def _resumed(c, run, result):
    run.mkdir(exist_ok=True)
    (run / "result.json").write_text(json.dumps(result))
    return train(c, run)


@pytest.mark.parametrize("damage", [3, {"changes": 3}])
def test_a_damaged_provenance_is_told(tmp_path, damage):
    workdir.claim(tmp_path, tiny_config(), FACTS)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"provenance": damage}))
    with pytest.raises(BadInput, match="config.json is damaged .provenance"):
        workdir.claim(tmp_path, tiny_config(), FACTS)


def test_a_folder_that_cannot_be_made_is_the_users_or_the_machines_fault(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(BadInput, match="choose another --workdir"):
            workdir.make_folder(folder)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "mkdir", full)
    with pytest.raises(CannotSave, match="No space left on device.*make room"):
        workdir.make_folder(tmp_path / "new")
