"""Checkpoints: only what is whole is loaded, what is not is named, and nobody else's is touched."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lm.config import CheckpointConfig
from lm.errors import BadInput, CannotSave, Stalled
from lm.train.checkpoint import Checkpoints
from lm.train.saving import Saving
from lm.train.state import TrainState

C = CheckpointConfig()


def state_at(step: int, dtype=jnp.float32) -> TrainState:
    values = jax.random.normal(jax.random.key(step), (64, 48), dtype)
    params = {"embed": values, "norm": {"scale": values[0] + 1}}
    return TrainState(jnp.int32(step), params, ({"embed": values * 2, "count": jnp.int32(step)},))


def progress(step: int, eval_loss: float | None = None) -> dict:
    return {"n_tokens": step * 10, "eval_step": step, "eval_loss": eval_loss}


def abstract(state: TrainState | None = None) -> TrainState:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
    return jax.tree.map(shape, state_at(0) if state is None else state)


def write(folder: Path, *steps: int, c: CheckpointConfig = C, losses: dict | None = None) -> None:
    checkpoints = Checkpoints(folder, c)
    for step in steps:
        checkpoints.save(state_at(step), progress(step, (losses or {}).get(step)))
    checkpoints.close()


def restored(folder: Path, step: int) -> None:
    found = Checkpoints(folder, C).restore(abstract())
    assert found is not None
    jax.tree.map(np.testing.assert_array_equal, found[0], state_at(step))
    assert found[1] == progress(step)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    write(folder, 10, 20)
    return folder


def kinds(folder: Path) -> dict[str, str]:
    """One file of every kind that a step has: its name up to digests."""
    names = (p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*")) if p.is_file())
    return {name if len(Path(name).name) < 32 else str(Path(name).parent): name for name in names}


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "does not have the contents it was written with": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "is missing": Path.unlink,
    "is empty": lambda path: os.truncate(path, 0),
    "longer than it was": lambda path: path.write_bytes(path.read_bytes() + b"0"),
}


def test_every_damage_to_every_kind_of_file_is_named_and_the_step_before_is_used(
    two_steps, tmp_path, capsys
):
    names = kinds(two_steps / "20")
    assert {"SHA256SUMS", "progress.json", "leaves.json", "state/_METADATA"} <= names.keys()
    assert sum("ocdbt" in name for name in names) >= 3
    for i, name in enumerate(names.values()):
        for said, damage in DAMAGES.items():
            folder = tmp_path / str(i) / said
            shutil.copytree(two_steps, folder)
            damage(folder / "20" / name)
            if name == "SHA256SUMS" and said in ("truncated", "longer than it was"):
                said = "does not have the contents it was written with"
            restored(folder, 10)
            line = f"left out: step 20: {name} {said if said != 'truncated' else 'is truncated'}"
            said_now = capsys.readouterr().err
            assert line.replace("longer", "is longer") in said_now, (line, said_now)
            assert not (folder / "20").exists() and (folder / "damaged-20").is_dir()


def test_any_flipped_byte_is_found(two_steps, tmp_path, capsys):
    rng = np.random.default_rng(0)
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_steps, folder)
    for name in kinds(folder / "20").values():
        path = folder / "20" / name
        before = path.read_bytes()
        for at in rng.random(5):
            flip(path, at)
            found = Checkpoints(folder, C, read_only=True).restore(abstract())
            assert found is not None and int(found[0].step) == 10
            assert f"step 20: {name} does not have" in capsys.readouterr().err
        path.write_bytes(before)
    restored(folder, 20)
    assert not capsys.readouterr().err


def test_a_file_or_a_folder_too_many_is_damage_and_stays(two_steps, tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_steps, folder)
    (folder / "20" / "state" / "d" / "notes.txt").write_text("mine")
    restored(folder, 10)
    assert "state/d/notes.txt was not there before" in capsys.readouterr().err
    assert (folder / "damaged-20" / "state" / "d" / "notes.txt").read_text() == "mine"
    write(folder, 20)  # nothing is in the way of the step when it comes again
    restored(folder, 20)


def test_when_nothing_is_whole_every_reason_is_told_and_nothing_moves(two_steps, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_steps, folder)
    (folder / "10" / "progress.json").unlink()
    flip(folder / "20" / "leaves.json")
    with pytest.raises(BadInput, match="step 20: leaves.json .*; step 10: progress.json is mis"):
        Checkpoints(folder, C).restore(abstract())
    assert sorted(p.name for p in folder.iterdir()) == ["10", "20"]


def test_the_list_is_what_sha256sum_checks(two_steps):
    for line in (two_steps / "20" / "SHA256SUMS").read_text().splitlines():
        if not line.startswith("#"):
            digest, name = line.split("  ")
            content = (two_steps / "20" / name).read_bytes()
            assert digest == hashlib.sha256(content).hexdigest()
    if shutil.which("sha256sum"):
        command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
        subprocess.run(command, cwd=two_steps / "20", check=True)


def test_what_is_not_ours_is_named_and_left_alone(two_steps, tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_steps, folder)
    others = {"notes.txt": "a", "best/model": "b", "15/x": "c", "007/state": "d", "10/mine": "e"}
    for name, content in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / ".saving-30" / "state").mkdir(parents=True)  # what a killed run left
    (folder / ".removing-5").mkdir()
    write(folder, 30, 40)
    said = capsys.readouterr().err
    assert "not written by this run: 007, 15, best, notes.txt" in said
    assert said.count("10 is left alone, it is not only ours: mine") == 1
    assert {name: (folder / name).read_text() for name in others} == others
    steps = {"10", "30", "40"}  # 20 was ours alone and is no longer among the newest two
    assert {p.name for p in folder.iterdir()} == steps | {"notes.txt", "best", "15", "007"}


def test_the_newest_and_the_best_are_kept(tmp_path):
    losses = {1: 3.0, 2: 1.0, 3: float("nan"), 4: 2.0, 5: 5.0, 6: None, 7: 4.0}
    write(tmp_path, *losses, c=CheckpointConfig(keep=2, keep_best=2), losses=losses)
    assert Checkpoints(tmp_path, C, read_only=True).steps.all() == [7, 6, 4, 2]
    restored_at = Checkpoints(tmp_path, C).restore(abstract())
    assert restored_at is not None and int(restored_at[0].step) == 7


def test_training_goes_on_while_a_step_is_written_and_may_change_what_it_saves(tmp_path):
    """The next step donates the state: its buffers are overwritten while the save goes on."""
    step = jax.jit(lambda s: jax.tree.map(lambda x: x * 0, s), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, C)
    big = jnp.arange(2_000_000, dtype=jnp.float32)
    state = TrainState(jnp.int32(1), {"big": big}, ())
    want = np.array(big)
    checkpoints.save(state, progress(1))
    assert checkpoints.steps.all() == []  # not yet: it is being written
    for _ in range(20):
        state = step(state)
    jax.block_until_ready(state)
    checkpoints.close()
    found = Checkpoints(tmp_path, C).restore(abstract(state))
    assert found is not None
    np.testing.assert_array_equal(found[0].params["big"], want)


def test_an_error_in_the_background_is_raised_at_the_next_step_and_leaves_nothing(tmp_path):
    write(tmp_path, 10)
    checkpoints = Checkpoints(tmp_path, C)
    (tmp_path / "20").mkdir()
    (tmp_path / "20" / "in the way").write_text("")
    checkpoints.save(state_at(20), progress(20))
    with pytest.raises(CannotSave, match="cannot save step 20 .* goes on from step 10"):
        while True:
            checkpoints.check()
            time.sleep(0.001)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "20"]
    shutil.rmtree(tmp_path / "20")
    checkpoints.save(state_at(30), progress(30))
    checkpoints.close()
    restored(tmp_path, 30)


def test_a_save_that_stalls_is_told():
    never = threading.Event()
    saving = Saving(never.wait, "saving step 7", stall_seconds=0.1)
    assert saving.done() is False
    with pytest.raises(Stalled, match="saving step 7 has not ended within 0.1 seconds"):
        saving.wait()
    never.set()


@contextlib.contextmanager
def as_nobody():
    """Root may write anywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_told_before_training(two_steps, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_steps, folder)
    for path in (*tmp_path.parents, tmp_path, folder):
        if path.owner() != "root" or path in (tmp_path, folder):
            path.chmod(0o555)
    try:
        with (
            as_nobody(),
            pytest.raises(BadInput, match="cannot be written .*denied.*: see that it"),
        ):
            Checkpoints(folder, C)
    finally:
        tmp_path.chmod(0o755)
        folder.chmod(0o755)


def test_another_train_state_is_refused_with_the_paths(two_steps):
    other = state_at(0)
    other.params["norm"] = {"scale": jnp.zeros(3, jnp.bfloat16), "bias": jnp.zeros(3)}
    with pytest.raises(BadInput) as e:
        Checkpoints(two_steps, C, read_only=True).restore(abstract(other))
    for words in (
        "params/norm/bias is missing there",
        "params/norm/scale is 48 there and 3 here",
        "params/norm/scale is float32 there and bfloat16 here",
    ):
        assert words in str(e.value)
