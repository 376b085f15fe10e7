"""Work folders behind addresses: what the store holds is the run, whatever this machine keeps."""

import dataclasses
import errno
import itertools
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from fresh_command import fresh

fsspec = pytest.importorskip("fsspec")

from experiments import cli  # noqa: E402
from lm.config import Config, default_config, freeze  # noqa: E402
from lm.errors import BadInput, CannotSave, Stopped  # noqa: E402
from lm.train import checksums, mirror, steps  # noqa: E402
from lm.train import store as stored  # noqa: E402
from lm.train.checkpoint import Checkpoints, restore_params  # noqa: E402
from lm.train.mirror import Mirror  # noqa: E402
from lm.train.run import train  # noqa: E402
from lm.train.stop import StopSignals  # noqa: E402

TIMES = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")


def config(n_steps: int = 6, **optim) -> Config:
    c = default_config()
    c.data.source, c.data.markov_symbols, c.data.markov_validation_tokens = "markov", 32, 128
    m = c.model
    m.d_model, m.n_layers, m.n_heads, m.max_length, m.d_ff = 8, 1, 1, 16, 16
    c.train.batch_size, c.train.steps = 4, n_steps
    c.log.every, c.eval.every, c.checkpoint.every = 1, 3, 2
    for name, value in optim.items():
        c.optim[name] = value
    return freeze(c)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Goes on as on another machine, by name."""

    def use(name: str) -> Path:
        monkeypatch.setenv("ISOFLOP_CACHE", str(tmp_path / name))
        return tmp_path / name

    use("here")
    return use


def outcome(folder: Path) -> tuple:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows.append(json.loads((folder / "result.json").read_text()))
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


class Killed(BaseException):
    pass


def test_a_run_stopped_and_killed_on_other_machines_ends_as_a_local_one(
    store, machine, tmp_path, monkeypatch, capsys
):
    address = "s3://bucket/runs/a"
    train(config(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(StopSignals, "asked", lambda self: "SIGTERM")
        with pytest.raises(Stopped, match=f"step 1 is saved in {address}"):
            train(config(), address)
    assert json.loads(store.cat("bucket/runs/a/result.json"))["status"] == "stopped"
    save = Checkpoints.save

    def killed_at_the_end(self, state, progress):
        if int(state.step) == 6:
            raise Killed
        save(self, state, progress)

    machine("second")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed_at_the_end)
        with pytest.raises(Killed):
            train(config(), address)
    assert "going on from step 1" in capsys.readouterr().err
    # An upload that was cut short before its list.
    store.pipe("bucket/runs/a/checkpoints/6/state/part", b"half")
    third = machine("third") / "runs" / "s3" / "bucket" / "runs" / "a"
    train(config(), address)
    assert "going on from step 4" in capsys.readouterr().err
    assert outcome(third) == outcome(tmp_path / "whole")
    store.invalidate_cache()
    assert not store.exists("bucket/runs/a/checkpoints/6/state/part")
    there = set(store.find("bucket/runs/a"))
    assert {name.split("/")[4] for name in there if "/checkpoints/" in name} == {"4", "6"}

    machine("reader")
    parameters = [restore_params(mirror.read(run))[1] for run in (address, tmp_path / "whole")]
    jax.tree.map(np.testing.assert_array_equal, *parameters)
    train(config(), address)
    assert f"{address} is finished" in capsys.readouterr().err
    store.invalidate_cache()
    assert set(store.find("bucket/runs/a")) == there


def test_a_store_that_is_not_there_is_told_before_anything_is_made(store, machine):
    for use in (lambda: train(config(), "s3://nobucket/a"), lambda: mirror.read("s3://nobucket/a")):
        with pytest.raises(BadInput, match="cannot .* s3://nobucket/a .*bucket does not exist"):
            use()
    with pytest.raises(BadInput, match="not a run's folder"):
        mirror.read("s3://bucket/nothing")
    with pytest.raises(BadInput, match="names no folder in a bucket"):
        train(config(), "s3://bucket")
    assert not (machine("here") / "runs").exists()


def test_runs_begin_and_branch_from_addresses(machine, tmp_path, capsys):
    wsd = {"schedule": "wsd", "warmup_steps": 2, "decay_fraction": 0.25, "keep_trunk": True}
    train(config(8, **wsd), "memory://runs/short")
    machine("another")
    train(config(16, **wsd), tmp_path / "branch", "memory://runs/short")
    assert "starts from step 6" in capsys.readouterr().err
    c = config()
    begins = dataclasses.replace(c.checkpoint, start_from="memory://runs/short")
    train(dataclasses.replace(c, checkpoint=begins), tmp_path / "begun")
    assert "those of step 8 of memory://runs/short" in capsys.readouterr().err


def test_only_training_and_generating_take_addresses():
    parsed = lambda: cli._parse(["sweep", "--workdir=s3://bucket/a"])
    with fresh("sweep"), pytest.raises(BadInput, match="--workdir=s3://bucket/a is an address"):
        parsed()


@pytest.fixture
def address(request):
    yield f"memory://runs/{request.node.name}"
    fsspec.filesystem("memory").rm("/runs", recursive=True)


def opened(address: str) -> Mirror:
    found = Mirror(address)
    found.folder.mkdir(parents=True, exist_ok=True)
    found._asked(found._pull)
    return found


def keep(run: Mirror, *numbers: int) -> None:
    """Commits steps, as training does, and leaves these two behind at the most."""
    found = steps.Steps(run.folder / "checkpoints")
    for n in numbers:
        path = found.unfinished(n)
        (path / "state").mkdir(parents=True)
        (path / "state" / "array").write_text(f"{run.folder} {n}")
        (path / "progress.json").write_text("{}")
        found.commit(n)
        found.retain(2, 0)
    (run.folder / "metrics.jsonl").write_text(f"rows up to {numbers[-1]}")


class Store:
    """Whose operations, and renames here, are counted; the one of a number kills."""

    METHODS = ("put_file", "pipe_file", "rm_file", "get_file")

    def __init__(self, patch):
        self.left = -1
        places = [(os, "rename"), (os, "replace")]
        places += [(type(fsspec.filesystem("memory")), name) for name in self.METHODS]
        for place, name in places:
            patch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, real):
        def operation(*args, **kwargs):
            self.left -= 1
            if self.left == -1:
                raise Killed
            return real(*args, **kwargs)

        return operation

    def kills(self, at: int, work) -> bool:
        """Whether work() was killed by its operation of this number."""
        self.left = at
        try:
            work()
            return False
        except Killed:
            return True
        finally:
            self.left = -1


def there(address: str) -> list[int]:
    found = Mirror(address)
    steps = found._asked(lambda fs, key: stored.steps(fs, key, stored.listing(fs, key)))
    return sorted(stored.number(step) for step, s in steps.items() if s.whole)


def here(run: Mirror) -> list[int]:
    return sorted(steps.Steps(run.folder / "checkpoints").all())


def test_a_step_that_a_kill_kept_from_the_store_goes_up_at_the_next_start(machine, address):
    run = opened(address)
    keep(run, 2, 4)
    run.push()
    fs = fsspec.filesystem("memory")
    fs.pipe_file(f"/runs/{address.split('/')[-1]}/checkpoints/2/notes", b"of a person")
    keep(run, 6)  # committed, and step 2 is gone: killed before the upload
    again = opened(address)
    assert here(again) == [4, 6] and there(address) == [2, 4]
    again.push()
    assert there(address) == [4, 6]
    left = [name for name in fs.find("/runs") if "/checkpoints/2/" in name]
    assert [name.rsplit("/", 1)[1] for name in left] == ["notes"]
    array = again.folder / "checkpoints/6/state/array"
    for i, damage in enumerate((array.unlink, lambda: array.write_text(""))):
        damage()  # and the store's is whole
        again = opened(address)
        again.push()
        assert here(again) == there(address) == [4, 6]
        assert array.read_text() == f"{again.folder} 6"
        assert len(list(again.folder.glob("checkpoints/damaged-6*"))) == i + 1
    (again.folder / "checkpoints/6").rename(again.folder / "checkpoints/moved")
    assert here(opened(address)) == [4, 6]


def test_a_push_that_is_killed_anywhere_is_taken_up_and_leaves_nothing(
    machine, address, monkeypatch
):
    operations = Store(monkeypatch)
    for then in ("here", "elsewhere"):
        for at in itertools.count():
            machine("here")
            run = opened(f"{address}/{then}{at}")
            keep(run, 2, 4)
            run.push()
            killed = operations.kills(at, lambda run=run: (keep(run, 6), run.push()))
            expected = here(run) if then == "here" else there(run.address)
            machine(then)
            again = opened(run.address)
            assert here(again) == expected and max(expected) >= 4
            for n in expected:
                assert not checksums.damage(again.folder / f"checkpoints/{n}")
            again.push()
            files = map(stored.step_of, again._asked(stored.listing))
            assert {stored.number(step) for step in files if step} == set(expected)
            assert there(run.address) == expected
            if not killed:
                break
        assert at > 8


def test_a_reader_that_is_killed_or_whose_disk_fails_reads_the_newest_step_again(
    machine, address, monkeypatch, capsys
):
    operations, run = Store(monkeypatch), opened(address)
    (run.folder / "config.json").write_text("{}")
    keep(run, 2)
    run.push()
    machine("reader")
    mirror.read(address)
    machine("here")
    keep(run, 4)
    run.push()
    machine("reader")
    for at in itertools.count():
        if not operations.kills(at, lambda: mirror.read(address)):
            break
    assert at > 4
    copy = mirror.read(address) / "checkpoints"
    assert [path.name for path in copy.iterdir()] == ["4"]
    (copy / "4/state/array").write_text("")
    assert mirror.read(address) / "checkpoints" == copy
    assert not checksums.damage(copy / "4") and "left out" not in capsys.readouterr().err


def test_what_a_person_removed_from_the_store_goes_up_again_only_with_a_word(
    machine, address, capsys
):
    run = opened(address)
    keep(run, 2, 4)
    run.push()
    fs = fsspec.filesystem("memory")
    root = f"/runs/{address.split('/')[-1]}/checkpoints"
    fs.rm(f"{root}/4", recursive=True)
    opened(address).push()
    assert "checkpoints/4 were deleted behind memory://" in capsys.readouterr().err
    assert there(address) == [2, 4]
    for n in (2, 4):
        fs.rm_file(f"{root}/{n}/state/array")
    machine("another")
    with pytest.raises(BadInput, match="no step behind memory://.* is whole: restore the files"):
        opened(address)


def test_the_store_wins_where_another_machine_has_gone_on(machine, address, capsys):
    first = opened(address)
    keep(first, 2)
    first.push()
    machine("there")
    second = opened(address)
    keep(second, 4)
    second.push()
    machine("here")
    keep(first, 4, 6)
    for name in ("notes", "result.json"):
        (first.folder / name).write_text("of here")
    with pytest.raises(CannotSave, match=r"checkpoints/4, which this run did not write"):
        first.push()
    again = opened(address)
    assert "checkpoints/6, checkpoints/4 of" in capsys.readouterr().err
    assert here(again) == there(address) == [2, 4]
    assert (again.folder / "notes").exists() and not (again.folder / "result.json").exists()
    for name in ("metrics.jsonl", "checkpoints/4/state/array"):
        assert (again.folder / name).read_text() == (second.folder / name).read_text()
    again.push()
    assert there(address) == [2, 4]


def test_a_store_that_fails_is_tried_again_and_then_named(machine, address, monkeypatch, capsys):
    run = opened(address)
    monkeypatch.setattr(mirror, "WAITS", (0.0, 0.0))
    failures, put = [], stored.put_step

    def fails(*args):
        failures.append(1)
        if len(failures) < 4:
            raise ConnectionError("no answer")
        put(*args)

    monkeypatch.setattr(stored, "put_step", fails)
    keep(run, 2)
    with pytest.raises(CannotSave, match=rf"cannot write {address} \(no answer\).*nothing is lost"):
        run.push()
    assert capsys.readouterr().err.count("trying again in 0 s") == 2
    assert here(run) == [2] and there(address) == []
    opened(address).push()
    assert there(address) == [2]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stored, "get", full)
    with pytest.raises(CannotSave, match=f"no room for copies in {machine('another')}: set ISO"):
        opened(address)
