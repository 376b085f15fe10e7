"""The files of a run: config.json, metrics.jsonl, result.json. Whole or absent, never half."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lm.config import Config, freeze, to_dict
from lm.data.tokenizer_json import NAME as TOKENIZER
from lm.data.tokenizer_json import without_text
from lm.errors import BadInput, CannotSave
from lm.json_text import loads
from lm.progress import say
from lm.train import changes
from lm.train.steps import Steps
from lm.whole_file import replacing, unwritable

PROVENANCE = "provenance"  # the key of config.json that is not config
FROM_STEP = "from_step"  # of a record of changes: the newest checkpoint's step when it was made
ROW = b'{"step": '  # how a line of metrics.jsonl begins
PACKAGES = ("isoflop", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def run_id(c: Config) -> str:
    """Returns 8 hexadecimal digits of the config's digest: the same config, the same id."""
    return _digest(to_dict(c))


def saved_run_id(workdir: Path) -> str:
    """Returns the id of the run in a folder: of the config it was made with."""
    saved = read_json(workdir / "config.json")
    return _digest({k: v for k, v in saved.items() if k != PROVENANCE})


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file in one piece: readers see the old file or the new one."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False))


def write_while_training(path: Path, value: Any) -> None:
    """As write_json, in a folder that could be written before and by one process of a group, which
    then ends alone: raises CannotSave for whatever reason."""
    try:
        write_json(path, value)
    except BadInput as e:
        raise CannotSave(str(e)) from e


def write_text(path: Path, text: str) -> None:
    """Writes a file in one piece, and a line's end after it. Raises as lm/whole_file.py does."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(text + "\n")
    except OSError as e:
        raise unwritable(path, e, "choose another --workdir") from e


def claim(workdir: Path, c: Config, facts: dict[str, Any]) -> None:
    """Makes the folder this config's, or checks that it already is.

    facts go into config.json beside the versions and the git state: the corpus's digest and the
    tokenizer. Raises BadInput with the differences if the folder belongs to another config; those
    that lm/train/changes.py lets pass are told and recorded there.
    """
    path = workdir / "config.json"
    ours, tokenizer = to_dict(c), without_text(facts["tokenizer"])
    if path.exists():
        theirs = read_json(path)
        saved = take_provenance(theirs, path)
        changed = difference(json.loads(json.dumps(ours)), theirs)
        refused = [f for f in changed if not changes.may_change(f)]
        if refused:
            lines = (
                f"{f} is {changed[f].then!r} there and {changed[f].now!r} now" for f in refused
            )
            raise BadInput(
                f"{workdir} holds a run of another config ({'; '.join(lines)}): choose another "
                "--workdir or the config it was made with"
            )
        if saved.get("corpus_sha256") != facts["corpus_sha256"]:
            raise BadInput(
                f"the corpus has changed since {workdir} was made (SHA-256 then "
                f"{str(saved.get('corpus_sha256'))[:12]}, now {facts['corpus_sha256'][:12]}): "
                "restore the text or start in another --workdir"
            )
        if saved.get("tokenizer") != json.loads(json.dumps(tokenizer)):
            raise BadInput(
                f"the tokenizer has changed since {workdir} was made: restore it or start in "
                "another --workdir"
            )
        for f, (then, now) in changed.items():
            say(changes.told(f, then, now))
        # The config stays the one it was made with: it is the run's identity. A record says how a
        # start differs from it, where it differs otherwise than the start before.
        record = saved.setdefault("changes", [])
        last = {f: now for f, now in record[-1].items() if f != FROM_STEP} if record else {}
        differs = {f: now for f, (_, now) in changed.items()}
        if differs != last:
            step = max(Steps(workdir / "checkpoints").all(), default=0)
            record.append({FROM_STEP: step} | differs)
            write_json(path, theirs | {PROVENANCE: saved})
        return
    make_folder(workdir)
    if tokenizer != facts["tokenizer"]:
        write_text(workdir / TOKENIZER, facts["tokenizer"]["text"])
    write_json(path, ours | {PROVENANCE: facts | {"tokenizer": tokenizer} | provenance()})


def saved_config(workdir: Path) -> tuple[Config, dict[str, Any]]:
    """Returns the config of the run in a folder, and its provenance; raises BadInput."""
    path = workdir / "config.json"
    if not path.is_file():
        raise BadInput(f"{workdir} is not a run's folder: it has no config.json")
    saved = read_json(path)
    provenance = take_provenance(saved, path)
    return freeze(saved, str(path)), provenance


def take_provenance(saved: dict[str, Any], path: Path) -> dict[str, Any]:
    """Takes the provenance out of a saved config and returns it; BadInput for a damaged one."""
    found = saved.pop(PROVENANCE, {})
    if not isinstance(found, dict) or not isinstance(found.get("changes", []), list):
        raise BadInput(f"{path} is damaged ({PROVENANCE} is not as it was written): restore it")
    return found


def make_folder(folder: Path) -> None:
    """Makes a work folder; raises BadInput where that cannot be, CannotSave for a full disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise unwritable(folder, e, "choose another --workdir") from e


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object; raises BadInput if the file is not one."""
    try:
        value = loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError("it holds something else")
        return value
    except (OSError, ValueError) as e:
        raise BadInput(f"{path} cannot be read as a JSON object ({e}): restore or remove it") from e


class Change(NamedTuple):
    then: Any
    now: Any


def difference(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> dict[str, Change]:
    """Returns the dotted fields in which two configs differ."""
    found: dict[str, Change] = {}
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= difference(a, b, f"{prefix}{name}.")
        elif a != b:
            found[f"{prefix}{name}"] = Change(b, a)
    return found


def provenance() -> dict[str, Any]:
    """Returns what else must be the same to repeat a run to the bit: versions, code, processor."""
    import jax

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = jax.devices()
    return {
        "versions": versions,
        "git": git_state(),
        "devices": {
            "kind": devices[0].device_kind,
            "count": len(devices),
            "processes": jax.process_count(),
        },
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "machine": platform.machine(),
    }


def git_state() -> dict[str, Any] | None:
    """Returns the commit of this code and whether it was changed since; None outside a checkout."""

    def git(*args: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", *args], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


class MetricsFile:
    """metrics.jsonl, one JSON object a line, in step order. Open it at the restored step."""

    def __init__(self, path: Path, after_step: int):
        self._path = path
        self._keep(_rows_until(path, after_step))
        self._file = open(path, "a")

    def _keep(self, rows: Iterable[str]) -> None:
        try:
            with replacing(self._path) as temporary:
                temporary.write_text("".join(rows))
        except OSError as e:
            raise CannotSave(f"cannot write {self._path}: {e.strerror}") from e

    def write(self, row: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as e:
            raise CannotSave(f"cannot write {self._path}: {e.strerror}") from e

    def sync(self) -> None:
        """Returns once every row is on the disk: before a checkpoint that relies on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as e:
            raise CannotSave(f"cannot write {self._path}: {e.strerror}") from e


def _rows_until(path: Path, step: int) -> list[str]:
    """Returns the lines up to a step; a last line cut short by a kill is not a row.

    Raises BadInput for a line before it that is no row: nobody can make those rows again.
    """
    if step == 0 or not path.exists():
        return []
    rows = []
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b"\n") and line.startswith(ROW[: len(line)]):
                break
            row = _row(line)
            if row is None:
                raise BadInput(
                    f"line {number} of {path} is damaged: restore the file, or remove it to go on "
                    f"from step {step} without the rows up to there"
                )
            if row["step"] > step:
                break  # what follows is written again
            rows.append(line.decode())
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    """Returns a line of metrics, None for anything else."""
    try:
        row = loads(line.decode())
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None
