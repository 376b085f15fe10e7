"""Checkpoints: the train state, and where the run stood, per step. Orbax writes the arrays.

A save copies what it needs, then goes on in the background. A step counts once every file of it is
written, summed (lm/train/checksums.py) and the folder renamed; on restore every sum is checked.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lm import group
from lm.config import CheckpointConfig, Config, MeshConfig
from lm.data.tokenizer_json import with_text
from lm.errors import BadInput, CannotSave
from lm.layout import Layout, make_layout
from lm.model import transformer
from lm.optim.build import build as build_optimizer
from lm.progress import warn
from lm.train import checksums, leaves, state
from lm.train.saving import Saving
from lm.train.state import TrainState
from lm.train.steps import PROGRESS, STATE, Steps
from lm.train.workdir import saved_config

# orbax is imported where it is used: it is slow to import and only runs with a work folder need it.

THREADS_END = 0.3  # seconds for writers in other threads to fail as well
FULL = ("No space left on device", "File too large", "Disk quota exceeded")


class Checkpoints:
    """The folder of one run's checkpoints. Every process of a group makes one and calls alike."""

    def __init__(
        self,
        folder: Path,
        c: CheckpointConfig,
        read_only: bool = False,
        then: Callable[[], None] = lambda: None,
    ):
        """then: called by the first process after each save, in the saving thread."""
        self.steps, self._c, self._read_only = Steps(folder.absolute()), c, read_only
        self._then = then
        self._saving: Saving | None = None
        self._saver: Any = None
        if group.first() and not read_only:
            self.steps.prepare()

    def save(self, train_state: TrainState, progress: dict[str, Any]) -> None:
        """Starts to write one step, after the one before is written; raises CannotSave, leaving
        earlier steps as they were. Nothing of the arguments is read after this returns."""
        import orbax.checkpoint as ocp

        self.wait()
        step = int(train_state.step)
        if step in self.steps.all():
            return
        if self._saver is None:
            self._saver = ocp.AsyncCheckpointer(
                ocp.StandardCheckpointHandler(), timeout_secs=max(1, round(self._c.stall_seconds))
            )
        if jax.devices()[0].platform == "cpu":
            # There the host's view of an array is its buffer, which the next step overwrites.
            train_state = _copy(train_state)
        saver, folder = self._saver, self.steps.unfinished(step)
        try:
            if group.first():
                folder.mkdir(parents=True)
                (folder / PROGRESS).write_text(json.dumps(progress))
                (folder / leaves.NAME).write_text(json.dumps(leaves.leaves(train_state), indent=0))
            saver.save(folder / STATE, args=ocp.args.StandardSave(train_state))
        except Exception as e:  # tensorstore raises ValueError for a full disk, the rest OSError
            raise self._failed(step, e) from e

        def finish() -> None:
            try:
                with _Quiet():
                    saver.wait_until_finished()
                    if group.first():
                        self.steps.commit(step)
                        self.steps.retain(self._c.keep, self._c.keep_best)
            except Exception as e:
                raise self._failed(step, e) from e
            if group.first():
                self._then()

        self._saving = Saving(finish, f"saving step {step}", self._c.stall_seconds)

    def _failed(self, step: int, e: Exception) -> CannotSave:
        if group.first():
            self.steps.drop(step)
        reason, last = _reason(e), max(self.steps.all(), default=0)
        mend = "make room there" if reason in FULL else "mend that"
        return CannotSave(
            f"cannot save step {step} in {self.steps.folder} ({reason}): {mend} and run the same "
            f"command again, it goes on from step {last}"
        )

    def check(self) -> None:
        """Raises what went wrong in the background, CannotSave; cheap, for every step."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            if not saving.done():
                self._saving = saving

    def wait(self) -> None:
        """Returns once nothing is being written; raises as `check` does."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.wait()

    def restore(
        self, abstract: TrainState, any_dtype: bool = False
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """Returns the newest whole step, on `abstract`'s shardings; None if none was ever saved.

        any_dtype: in the dtypes that were saved, whatever `abstract`'s are. Says so when it falls
        back, and moves what is damaged out of the way. Raises BadInput when nothing can be read,
        or when what was saved is not of `abstract`'s paths, shapes and dtypes.
        """
        steps = self.steps.all()
        bad: dict[int, list[str]] = {}
        for step in steps:
            folder, found = self.steps.path(step), None
            lines = checksums.damage(folder, group.index(), group.size())
            if group.everywhere(not lines) and not lines:
                saved = leaves.saved(folder)
                target = leaves.with_dtypes(abstract, saved) if any_dtype else abstract
                _refuse(folder, leaves.differences(saved, leaves.leaves(target)))
                try:
                    found = self._read(folder / STATE, target), self.steps.progress(step)
                except Exception as e:  # whatever the reader raises for what was written wrongly
                    lines = [_first_line(e)]
                if group.everywhere(found is not None) and found is not None:
                    self._set_aside(bad)
                    return found
            for line in lines:
                warn(f"a checkpoint cannot be used and is left out: step {step}: {line}")
            bad[step] = lines or ["another process cannot read it"]
        if bad:
            reasons = "; ".join(f"step {step}: {', '.join(bad[step])}" for step in steps)
            raise BadInput(
                f"no checkpoint in {self.steps.folder} can be read ({reasons}): restore the "
                "folder from a copy, or remove it to start from the beginning"
            )
        return None

    def _set_aside(self, bad: dict[int, list[str]]) -> None:
        if group.first() and not self._read_only:
            for step in bad:
                warn(f"the damaged step {step} is kept as {self.steps.set_aside(step)}")

    def _read(self, path: Path, abstract: TrainState) -> TrainState:
        """Reads this process's part and waits for no other: each may find another file damaged."""
        import orbax.checkpoint as ocp

        me = group.index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"reader{me}"
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
            return reader.restore(path, args=ocp.args.StandardRestore(abstract))

    def close(self) -> None:
        """Returns once nothing is being written; raises as `check` does."""
        self.wait()
        if self._saver is not None:
            self._saver.close()


class _Quiet:
    """Writers that fail together print tracebacks from their threads; one sentence says it all."""

    def __enter__(self) -> None:
        self._before = threading.excepthook, sys.excepthook, sys.unraisablehook
        here = threading.main_thread()
        # Threads that Python did not start come to sys.excepthook.
        only_here = lambda hook: (
            lambda *args: hook(*args) if threading.current_thread() is here else None
        )
        threading.excepthook = lambda _: None
        sys.excepthook, sys.unraisablehook = map(only_here, self._before[1:])

    def __exit__(self, kind, *_) -> None:
        if kind:
            time.sleep(THREADS_END)
        threading.excepthook, sys.excepthook, sys.unraisablehook = self._before


@jax.jit
def _copy(train_state: TrainState) -> TrainState:
    return jax.tree.map(jnp.copy, train_state)


def _refuse(folder: Path, differ: list[leaves.Difference]) -> None:
    if differ:
        raise BadInput(
            f"the checkpoint {folder} is of another train state ({leaves.shown(differ)}): go on "
            "with the config it was made with, or begin another run with checkpoint.start_from"
        )


def _first_line(e: BaseException) -> str:
    text = str(e).strip().splitlines()
    return text[0][:200] if text else type(e).__name__


def _reason(e: BaseException) -> str:
    text = str(e)
    for known in (*FULL, "Read-only file system"):
        if known in text:
            return known
    return _first_line(e)


class SavedRun(NamedTuple):
    config: Config
    state: TrainState
    tokenizer: dict[str, Any]  # its spec


def restore_run(workdir: Path, layout: Layout, any_dtype: bool = False) -> SavedRun:
    """Returns the newest checkpoint of a work folder, on a layout; changes nothing there.

    Raises BadInput for a folder without a trained model.
    """
    c, provenance = saved_config(workdir)
    table = transformer.table(c.model, c.pipeline.repeats)
    abstract = state.abstract(table, build_optimizer(c.optim, table, c.precision), layout)
    if "tokenizer" not in provenance:
        raise BadInput(f"{workdir}/config.json does not say which tokenizer: restore or train it")
    checkpoints = Checkpoints(workdir / "checkpoints", c.checkpoint, read_only=True)
    found = checkpoints.restore(abstract, any_dtype)
    if found is None:
        raise BadInput(f"{workdir} has no checkpoint yet: train it first")
    return SavedRun(c, found[0], with_text(provenance["tokenizer"], workdir))


def restore_params(workdir: Path) -> tuple[Config, Any, dict[str, Any]]:
    """Returns (config, parameters, tokenizer spec) of the newest checkpoint of a work folder.

    On one device, whatever mesh trained it. Raises BadInput for a folder without a trained model.
    """
    found = restore_run(workdir, make_layout(MeshConfig()))
    return found.config, state.evaluated(found.state), found.tokenizer
