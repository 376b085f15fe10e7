"""The folder of a run's checkpoints: which steps are whole, and what may be cleaned up.

    checkpoints/40/            a committed step: state/, progress.json, leaves.json, SHA256SUMS
    checkpoints/.saving-60/    one being written; renamed when it is whole
    checkpoints/.removing-20/  one being deleted
    checkpoints/damaged-50/    one that was found damaged, for a person to look at

Anything else was not written here and is left alone, files inside a step included.
"""

import json
import math
import os
import shutil
from pathlib import Path

from lm.progress import warn
from lm.train import checksums
from lm.whole_file import sync, unwritable

STATE, PROGRESS = "state", "progress.json"
SAVING, REMOVING, DAMAGED = ".saving-", ".removing-", "damaged-"


class Steps:
    """The steps in a folder, by number."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._kept: set[int] = set()  # with files of others in them; said once

    def prepare(self) -> None:
        """Makes the folder, sees that it can be written, clears what a killed run left unfinished
        and names what is not ours; raises BadInput, or CannotSave for a full disk."""
        probe = self.folder / f"{SAVING}probe"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe.mkdir(exist_ok=True)
            (probe / "file").write_text("")
            for path in self.folder.glob(f"{SAVING}*"):
                shutil.rmtree(path)
            for path in self.folder.glob(f"{REMOVING}*"):
                _delete(path)
        except OSError as e:
            remedy = "see that it can be written, or choose another --workdir"
            raise unwritable(self.folder, e, remedy) from e
        foreign = sorted(p.name for p in self.folder.iterdir() if not self._ours(p))
        if foreign:
            warn(f"left alone in {self.folder}, not written by this run: {', '.join(foreign)}")

    def _ours(self, path: Path) -> bool:
        name = path.name
        return path.is_dir() and (_is_step(path) or name.startswith((SAVING, REMOVING, DAMAGED)))

    def all(self) -> list[int]:
        """Returns the committed steps, newest first, damaged ones too."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((int(p.name) for p in found if _is_step(p)), reverse=True)

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def unfinished(self, step: int) -> Path:
        """Returns where a step is written before it counts."""
        return self.folder / f"{SAVING}{step}"

    def commit(self, step: int) -> None:
        """Seals a step that is written and lets it count from here on; raises OSError."""
        path = self.unfinished(step)
        if self.path(step).exists():
            raise OSError(f"{self.path(step)} is in the way, not written by this run")
        checksums.seal(path)
        sync(path)
        os.rename(path, self.path(step))
        sync(self.folder)

    def drop(self, step: int) -> None:
        """Removes what is left of a step that could not be written."""
        shutil.rmtree(self.unfinished(step), ignore_errors=True)

    def set_aside(self, step: int) -> Path:
        """Renames a damaged step, which later steps may find in the way; returns its new path."""
        names = (f"{DAMAGED}{step}{f'-{i}' if i else ''}" for i in range(10**6))
        path = next(p for p in map(self.folder.joinpath, names) if not p.exists())
        os.rename(self.path(step), path)
        return path

    def retain(self, newest: int, best: int) -> None:
        """Removes every step but the `newest` newest and the `best` of lowest eval loss, unless it
        holds files that were not written here."""
        steps = self.all()
        losses = {step: self.eval_loss(step) for step in steps} if best else {}
        ranked = sorted((loss, -step) for step, loss in losses.items() if loss is not None)
        keep = {*steps[:newest], *(-step for _, step in ranked[:best])}
        for step in steps:
            if step not in keep:
                self._remove(step)

    def _remove(self, step: int) -> None:
        try:
            others = set(checksums.files(self.path(step))) - set(checksums.listed(self.path(step)))
        except checksums.BadList as e:
            others = {str(e)}
        if others:
            if step not in self._kept:
                warn(f"{self.path(step)} is left alone, it is not only ours: {', '.join(others)}")
            self._kept.add(step)
            return
        self.discard(step)

    def discard(self, step: int) -> None:
        """Removes a step, whatever is in it."""
        path = self.folder / f"{REMOVING}{step}"
        os.rename(self.path(step), path)
        _delete(path)

    def progress(self, step: int) -> dict:
        """Returns where a run stood at a step; raises OSError or ValueError."""
        return json.loads((self.path(step) / PROGRESS).read_text())

    def eval_loss(self, step: int) -> float | None:
        """Returns the loss of the evaluation made at this very step, if there was one."""
        try:
            found = self.progress(step)
        except (OSError, ValueError):
            return None  # a damaged one is not the best
        loss = found.get("eval_loss") if found.get("eval_step") == step else None
        return loss if loss is not None and math.isfinite(loss) else None


def _is_step(path: Path) -> bool:
    """A step that lost a file or two is still one."""
    numbered = path.name.isdecimal() and path.name == str(int(path.name))
    return numbered and any((path / name).exists() for name in (STATE, PROGRESS, checksums.NAME))


def _delete(path: Path) -> None:
    # A kill in between leaves the list to the next start, and so what was ours.
    for child in path.iterdir():
        if child.name != checksums.NAME:
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    shutil.rmtree(path)
