"""Work folders behind s3://, gs:// and other addresses: a folder on this machine stands for each.

It lies under ISOFLOP_CACHE. A start pulls what the store has into it; after every save what is new
in it is pushed. A step counts in the store once its SHA256SUMS, which goes up last, and all that
this lists are there. Rows of metrics go up before a step that relies on them, result.json after the
last step. Where the store holds steps that this folder never had, another machine has gone on: the
store wins. One machine at a time trains behind an address.
"""

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm import group
from lm.data import remote
from lm.errors import BadInput, CannotSave, Diverged, Stopped
from lm.progress import say, warn
from lm.train import checksums, goodput, store
from lm.train.lock import locked
from lm.train.steps import Steps
from lm.train.store import CHECKPOINTS, TRUNK, Found, Step
from lm.train.trackers import TENSORBOARD, WANDB
from lm.train.workdir import PROVENANCE, write_json

NOTE = ".store.json"  # digests of the steps that the store held when it was last seen from here
CONFIG, RESULT = "config.json", "result.json"
# What a start goes on from beside steps; whatever else lies in a folder may be a person's.
STANDING = (CONFIG, RESULT, "metrics.jsonl", goodput.NAME, WANDB)
WAITS = (2.0, 10.0, 30.0)  # seconds before an upload that failed is tried again


class Mirror:
    """A work folder, with what keeps it behind an address; of a plain path, the folder alone."""

    def __init__(self, path: Path | str, reading: bool = False):
        self.folder = place(path, reading)
        self.address = str(path).rstrip("/") if remote.is_remote(str(path)) else None
        self.shown = self.address or str(self.folder)
        self._locked, self._busy = False, threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}  # time and size of small files that are there

    def lock(self, held: contextlib.ExitStack) -> None:
        """Makes the folder this process's to train in while `held` is; raises BadInput."""
        if not self._locked:
            held.enter_context(locked(self.folder))
            self._locked = True

    def open(self, held: contextlib.ExitStack) -> None:
        """Locks and pulls, of an address; every process of a group calls it.

        Raises BadInput where the store cannot be read and written, or processes of the group do
        not see the folder; nothing is made then.
        """
        if self.address:
            group.together(lambda: self._take(held) if group.first() else None)
            check_seen(self.folder)

    def _take(self, held: contextlib.ExitStack) -> None:
        self._asked(store.listing)
        self._asked(store.probe, "write")
        self.lock(held)
        say(f"{self.address} is worked on in {self.folder}")
        self._asked(self._pull)

    def _asked(self, ask, verb: str = "read") -> Any:
        return remote.asked(self.address or "", ask, verb)

    def _pull(self, fs, key: str) -> None:
        sizes = store.listing(fs, key)
        listed = store.steps(fs, key, sizes)
        for step in (s for s, found in listed.items() if not found.whole):
            warn(f"{self.address}/{step} is left out: not all that its list names is there")
        there = {s: found for s, found in listed.items() if found.whole}
        damaged, here = self._set_damaged_aside(there), self._here()
        if listed and not there and not here:
            raise BadInput(
                f"no step behind {self.address} is whole: restore the files there, or remove "
                f"{CHECKPOINTS} to start from the beginning"
            )
        # Of steps that are known, those that are not here were left behind by checkpoint.keep.
        wins = (
            bool(self._unknown(there, here))
            or store.newest(here) < store.newest(there)
            or self._is_another_run(fs, key, sizes)
        )
        if wins:
            gone = [s for s in here if s not in there or here[s].sha256 != there[s].sha256]
            if gone:
                say(
                    f"{self.address} was trained on elsewhere: it is gone on from there, and "
                    f"{', '.join(gone)} of {self.folder} are dropped"
                )
            for step in gone:
                self._discard(step)
            for name in STANDING:
                if name not in sizes:
                    (self.folder / name).unlink(missing_ok=True)
        elif deleted := [s for s in here if s in self._note() and s not in listed]:
            warn(
                f"{', '.join(deleted)} were deleted behind {self.address} and go up again: to be "
                f"rid of them, delete them in {self.folder} too"
            )
        get = [s for s in there if wins or s.startswith(TRUNK) or s in damaged]
        have = self._here()
        self._get_small(fs, key, [n for n in store.small(sizes) if wins or not self._has(n)])
        for step in (s for s in get if s not in have):
            self._get_step(fs, key, step, there[step])
        self._write_note(listed)  # what a kill kept from being removed, too

    def push(self) -> None:
        """Brings what is new here behind the address and removes steps that are gone here; does
        nothing for a plain path. May run in any thread. Raises CannotSave, after some tries."""
        if not self.address or not group.first():
            return
        with self._busy:
            for wait in (*WAITS, None):
                try:
                    return self._asked(self._push, "write")
                except BadInput as e:
                    if wait is None:
                        raise CannotSave(
                            f"{e}; nothing is lost here, run the same command again to go on"
                        ) from e
                    warn(f"{e}; trying again in {wait:g} s")
                    time.sleep(wait)

    @contextlib.contextmanager
    def pushed(self) -> Iterator[None]:
        """A context after which, unless something failed in it, all is pushed; for every process
        of a group."""
        try:
            yield
        except (Stopped, Diverged):
            group.together(self.push)
            raise
        group.together(self.push)

    def _push(self, fs, key: str) -> None:
        sizes, here, known = store.listing(fs, key), self._here(), self._note()
        listed = store.steps(fs, key, sizes)
        others = self._unknown({s: f for s, f in listed.items() if f.whole}, here)
        if others:
            raise CannotSave(
                f"{self.address} has {', '.join(others)}, which this run did not write: another "
                "machine trains there; let one of them go on"
            )
        small = self._small()
        self._put_small(fs, key, [name for name in small if name != RESULT])
        for step in sorted(here, key=store.number):
            found = listed.get(step)
            if found is None or not found.whole or found.sha256 != here[step].sha256:
                if found is not None:
                    store.remove_step(fs, key, step, found, sizes)
                store.put_step(fs, key, step, self.folder / step, here[step].files)
        for step, found in listed.items():
            if step in known and step not in here and step.startswith(CHECKPOINTS):
                store.remove_step(fs, key, step, found, sizes)
        cut = [name for name in store.cut_short(sizes) if store.step_of(name) not in here]
        store.remove(fs, key, [*cut, *_stale(sizes, small)])
        self._put_small(fs, key, [name for name in small if name == RESULT])
        self._write_note(here)

    def fetch(self, kind: str) -> None:
        """Copies config.json, the tokenizer, the metrics and the newest step in the folder `kind`,
        for reading. Raises BadInput for an address without a trained model."""
        self._asked(store.listing)  # before anything is made
        with locked(self.folder, wait=True):
            self._asked(lambda fs, key: self._fetch(fs, key, kind))

    def _fetch(self, fs, key: str, kind: str) -> None:
        sizes = store.listing(fs, key)
        if CONFIG not in sizes:
            raise BadInput(f"{self.address} is not a run's folder: it has no {CONFIG}")
        there = {s: f for s, f in store.steps(fs, key, sizes, kind).items() if f.whole}
        if not there and kind == CHECKPOINTS:
            raise BadInput(f"{self.address} has no checkpoint yet: train it first")
        Steps(self.folder / kind).prepare()  # a reader may have been killed here
        self._get_small(fs, key, store.small(sizes))
        taken, here = None, self._here()
        for step in sorted(there, key=store.number, reverse=True):
            copied = step in here and here[step].sha256 == there[step].sha256
            lines = checksums.damage(self.folder / step) if copied else ["it is not here yet"]
            if lines:
                self._get_step(fs, key, step, there[step])
                lines = checksums.damage(self.folder / step)
            if not lines:
                taken = step
                break
            warn(f"{self.address}/{step} cannot be used and is left out: {'; '.join(lines)}")
        for step in self._here():
            if step.startswith(kind) and step != taken:
                self._discard(step)

    def _here(self) -> Found:
        found = {}
        for kind in (CHECKPOINTS, TRUNK):
            steps = Steps(self.folder / kind)
            for n in steps.all():
                with contextlib.suppress(OSError, checksums.BadList):
                    files = list(checksums.listed(steps.path(n)))
                    text = (steps.path(n) / checksums.NAME).read_bytes()
                    found[f"{kind}/{n}"] = Step(hashlib.sha256(text).hexdigest(), files, True)
        return found

    def _unknown(self, there: Found, here: Found) -> list[str]:
        """Returns the steps in the store that were neither written here nor ever seen."""
        ours = [self._note(), {s: found.sha256 for s, found in here.items()}]
        return [s for s, f in there.items() if all(known.get(s) != f.sha256 for known in ours)]

    def _set_damaged_aside(self, there: Found) -> list[str]:
        """Renames the newest checkpoints that are damaged here and whole in the store; returns
        them."""
        steps, found = Steps(self.folder / CHECKPOINTS), []
        for n in steps.all():
            lines = checksums.damage(steps.path(n))
            if not lines:
                break
            if f"{CHECKPOINTS}/{n}" in there:
                found.append(f"{CHECKPOINTS}/{n}")
                warn(
                    f"step {n} is damaged here ({'; '.join(lines)}): it is kept as "
                    f"{steps.set_aside(n)} and copied again"
                )
        return found

    def _is_another_run(self, fs, key: str, sizes: dict[str, int]) -> bool:
        if CONFIG not in sizes or not self._has(CONFIG):
            return False
        try:
            texts = fs.cat_file(f"{key}/{CONFIG}"), (self.folder / CONFIG).read_bytes()
            theirs, ours = ({**json.loads(text), PROVENANCE: None} for text in texts)
        except (ValueError, TypeError):
            return True  # pulled, it is named
        return theirs != ours

    def _note(self) -> dict[str, str]:
        try:
            return json.loads((self.folder / NOTE).read_text())
        except (OSError, ValueError):
            return {}

    def _write_note(self, steps: Found) -> None:
        write_json(self.folder / NOTE, {s: found.sha256 for s, found in steps.items()})

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _discard(self, step: str) -> None:
        kind, n = step.split("/")
        Steps(self.folder / kind).discard(int(n))

    def _small(self) -> list[str]:
        """Returns the files here that are part of no step: names, with slashes."""
        found = []
        for top in sorted(self.folder.iterdir()):
            if top.name.startswith(".") or top.name in (CHECKPOINTS, TRUNK):
                continue
            inside = [top] if not top.is_dir() else sorted(top.rglob("*"))
            found += [p for p in inside if p.is_file() and not p.is_symlink()]
        return [p.relative_to(self.folder).as_posix() for p in found]

    def _get_small(self, fs, key: str, names: list[str]) -> None:
        temporary = {name: self.folder / f".{name}.tmp" for name in names}
        try:
            store.get(fs, key, temporary)
            for name, path in temporary.items():
                os.replace(path, self.folder / name)
        finally:
            for path in temporary.values():
                path.unlink(missing_ok=True)

    def _get_step(self, fs, key: str, step: str, found: Step) -> None:
        kind, n = step.split("/")
        steps = Steps(self.folder / kind)
        unfinished, path = steps.unfinished(int(n)), steps.path(int(n))
        say(f"copying {self.address}/{step} to {path}")
        shutil.rmtree(unfinished, ignore_errors=True)
        names = [*found.files, checksums.NAME]
        store.get(fs, key, {f"{step}/{name}": unfinished / name for name in names})
        if path.exists():
            steps.discard(int(n))
        os.rename(unfinished, path)

    def _put_small(self, fs, key: str, names: list[str]) -> None:
        stat = {name: (self.folder / name).stat() for name in names}
        versions = {name: (found.st_mtime_ns, found.st_size) for name, found in stat.items()}
        changed = [name for name in names if self._sent.get(name) != versions[name]]
        # Read first: some of them grow meanwhile.
        contents = {f"{key}/{name}": (self.folder / name).read_bytes() for name in changed}
        if contents:
            fs.pipe(contents)
        self._sent |= {name: versions[name] for name in changed}


def place(path: Path | str, reading: bool = False) -> Path:
    """Returns where a work folder lies on this machine. Raises BadInput for an address that names
    none."""
    text = str(path)
    if not remote.is_remote(text):
        return Path(path)
    protocol, _, key = text.partition("://")
    parts = key.strip("/").split("/")
    if len(parts) < 2 or {"", ".", ".."} & set(parts) or "::" in text:
        raise BadInput(f"{text} names no folder in a bucket: write {protocol}://BUCKET/FOLDER")
    return remote.cache() / ("runs-read" if reading else "runs") / protocol / Path(*parts)


def read(path: Path | str, kind: str = CHECKPOINTS) -> Path:
    """Returns the work folder to read a trained model from: behind an address, a copy of its newest
    step in the folder `kind`. Writes nothing there. Raises BadInput."""
    copy = Mirror(path, reading=True)
    if copy.address:
        copy.fetch(kind)
    return copy.folder


def read_together(path: Path | str, kind: str = CHECKPOINTS) -> Path:
    """As `read`, once for all processes of a group, which call it at the same point."""
    if not remote.is_remote(str(path)):
        return Path(path)
    copy = lambda: read(path, kind) if group.first() else place(path, reading=True)
    folder = group.together(copy)
    check_seen(folder)
    return folder


def _stale(sizes: dict[str, int], here: list[str]) -> list[str]:
    """Returns TensorBoard's files of earlier starts: a start writes them anew."""
    ours = f"{TENSORBOARD}/"
    anew = any(name.startswith(ours) for name in here)
    return [n for n in sizes if anew and n.startswith(ours) and n not in here]


def check_seen(folder: Path) -> None:
    """Raises BadInput where processes of the group do not see the first one's files."""
    seen = group.see_first(folder)

    def refuse() -> None:
        if not seen and group.first():
            raise BadInput(
                f"{folder} is not the same folder for every process: set ISOFLOP_CACHE to one that "
                "all hosts see"
            )

    group.together(refuse)
