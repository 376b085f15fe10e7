"""Checkpoints through Orbax: the train state, and where the run stood, per committed step."""

import contextlib
import io
import shutil
import time
from pathlib import Path
from typing import Any

from lm import group
from lm.config import Config, MeshConfig, freeze
from lm.errors import BadInput, CannotSave
from lm.layout import make_layout
from lm.model import transformer
from lm.optim.build import build as build_optimizer
from lm.progress import warn
from lm.train import state
from lm.train.state import TrainState
from lm.train.workdir import PROVENANCE, read_json

# orbax is imported where it is used: it is slow to import and only runs with a work folder need it.

THREADS_END = 0.3  # seconds for writers in other threads to fail as well


class Checkpoints:
    """The folder of one run's checkpoints. Only committed steps count."""

    def __init__(self, folder: Path, keep: int, read_only: bool = False):
        import orbax.checkpoint as ocp

        class Manager(ocp.CheckpointManager):
            def reached_preemption(self, step: int) -> bool:
                return False  # asking JAX would spoil the count of lm/train/stop.py

        self._ocp, self.folder, self._read_only = ocp, folder.absolute(), read_only
        try:
            self._manager = Manager(
                self.folder,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=keep,
                    cleanup_tmp_directories=not read_only,
                    read_only=read_only,
                    # On a CPU an asynchronous save may read buffers that the next step overwrites.
                    enable_async_checkpointing=False,
                ),
            )
        except (OSError, ValueError) as e:
            raise BadInput(
                f"the checkpoint folder {folder} cannot be used ({_first_line(e)}): "
                "move what is there away or choose another --workdir"
            ) from e

    def save(self, train_state: TrainState, progress: dict[str, Any]) -> None:
        """Writes one step; raises CannotSave, leaving earlier steps as they were."""
        args, step = self._ocp.args, int(train_state.step)
        if step in self._manager.all_steps():
            return
        # Writers that fail together print tracebacks from their threads; the sentence says it all.
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                saved = self._manager.save(
                    step,
                    args=args.Composite(
                        state=args.StandardSave(train_state), progress=args.JsonSave(progress)
                    ),
                    force=True,
                )
                assert saved, f"step {step} was not saved"
                return
            except (
                Exception
            ) as e:  # tensorstore raises ValueError for a full disk, the rest OSError
                failure = e
                time.sleep(THREADS_END)
        for left in self.folder.glob("*orbax-checkpoint-tmp*") if group.first() else ():
            shutil.rmtree(left, ignore_errors=True)
        good = [s for s in self._manager.all_steps() if s != step]
        raise CannotSave(
            f"cannot save step {step} in {self.folder} ({_reason(failure)}): make room there and "
            f"run the same command again, it goes on from step {max(good, default=0)}"
        ) from failure

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Returns the newest step that can be read, on `abstract`'s shardings; None if none was
        ever saved. Says so when it falls back, and raises BadInput when nothing can be read."""
        args = self._ocp.args
        steps = sorted(self._manager.all_steps(), reverse=True)
        reasons, reader = [], self._reader()
        for step in steps:
            found, reason = None, "another process cannot read it"
            try:
                found = reader.restore(
                    step,
                    args=args.Composite(
                        state=args.StandardRestore(abstract), progress=args.JsonRestore()
                    ),
                )
            except Exception as e:  # whatever a damaged file makes the reader raise
                reason = _first_line(e)
                warn(f"a checkpoint cannot be read and is left out: step {step}: {reason}")
            if not group.everywhere(found is not None) or found is None:
                reasons.append(f"step {step}: {reason}")
                continue
            if reasons and not self._read_only:
                # Later steps will be written again, and may not find the damaged ones in the way.
                for bad in steps[: len(reasons)]:
                    self._manager.delete(bad)
            reader.close()
            return found["state"], found["progress"]
        if reasons:
            raise BadInput(
                f"no checkpoint in {self.folder} can be read ({'; '.join(reasons)}): restore the "
                "folder from a copy, or remove it to start from the beginning"
            )
        return None

    def _reader(self) -> Any:
        """Returns a manager that reads this process's part of a step and waits for no other: each
        may find another file damaged."""
        me = group.index()
        options = self._ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"reader{me}"
        )
        return self._ocp.CheckpointManager(
            self.folder,
            options=self._ocp.CheckpointManagerOptions(
                read_only=True, multiprocessing_options=options
            ),
        )

    def close(self) -> None:
        self._manager.close()


def _first_line(e: BaseException) -> str:
    text = str(e).strip().splitlines()
    return text[0][:200] if text else type(e).__name__


def _reason(e: BaseException) -> str:
    text = str(e)
    for known in ("No space left on device", "File too large", "Read-only file system"):
        if known in text:
            return known
    return _first_line(e)


def restore_params(workdir: Path) -> tuple[Config, Any, dict[str, Any]]:
    """Returns (config, parameters, tokenizer spec) of the newest checkpoint of a work folder.

    On one device, whatever mesh trained it. Raises BadInput for a folder without a trained model.
    """
    if not (workdir / "config.json").is_file():
        raise BadInput(f"{workdir} is not a run's folder: it has no config.json")
    saved = read_json(workdir / "config.json")
    provenance = saved.pop(PROVENANCE, {})
    c = freeze(saved, str(workdir / "config.json"))
    table = transformer.table(c.model, c.pipeline.repeats)
    abstract = state.abstract(table, build_optimizer(c.optim, table), make_layout(MeshConfig()))
    if "tokenizer" not in provenance:
        raise BadInput(f"{workdir}/config.json does not say which tokenizer: restore or train it")
    checkpoints = Checkpoints(workdir / "checkpoints", c.checkpoint.keep, read_only=True)
    found = checkpoints.restore(abstract)
    checkpoints.close()
    if found is None:
        raise BadInput(f"{workdir} has no checkpoint yet: train it first")
    return c, found[0].params, provenance["tokenizer"]
