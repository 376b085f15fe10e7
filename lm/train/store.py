"""What stands behind the address of a work folder: its files, and which steps of it count.

Every function takes the file system and the key in it (lm/data/remote.py), and raises what that
raises. A step counts once its SHA256SUMS, which goes up last, is there with all that it lists.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lm.data.remote import TOGETHER
from lm.progress import warn
from lm.train import checksums, trunk
from lm.train.leaves import NAME as LEAVES
from lm.train.steps import PROGRESS, STATE

CHECKPOINTS, TRUNK = "checkpoints", trunk.FOLDER
STEP = re.compile(f"((?:{CHECKPOINTS}|{TRUNK})/(?:0|[1-9][0-9]*))/(.+)")
PROBE = ".probe"


class Step(NamedTuple):
    sha256: str  # of its SHA256SUMS
    files: list[str]  # that it lists
    whole: bool  # they are all there, in their sizes


Found = dict[str, Step]  # by path from the work folder, such as checkpoints/40


def listing(fs, key: str) -> dict[str, int]:
    """Returns the sizes of the files there, by path from the address."""
    fs.invalidate_cache()
    found = fs.find(key, detail=True)
    return {name[len(key) :].lstrip("/"): info["size"] for name, info in found.items()}


def probe(fs, key: str) -> None:
    """Raises what keeps files from being written there."""
    fs.pipe_file(f"{key}/{PROBE}", b"")
    fs.rm_file(f"{key}/{PROBE}")


def steps(fs, key: str, sizes: dict[str, int], kind: str = "") -> Found:
    """Returns the steps with a list, of all kinds or one."""
    found = {}
    for name in sizes:
        step, file = _split(name)
        if file == checksums.NAME and step.startswith(kind):
            text = fs.cat_file(f"{key}/{name}")
            try:
                want = checksums.parse(text)
            except checksums.BadList as e:
                warn(f"{key}/{step} is left out: {e}")
                continue
            whole = all(sizes.get(f"{step}/{f}") == size for f, (size, _) in want.items())
            found[step] = Step(hashlib.sha256(text).hexdigest(), list(want), whole)
    return found


def cut_short(sizes: dict[str, int]) -> list[str]:
    """Returns the files of uploads that a kill cut short: ours by their names, of steps without a
    list."""
    ours = lambda file: file in (PROGRESS, LEAVES) or file.startswith(f"{STATE}/")
    begun = lambda step: step and f"{step}/{checksums.NAME}" not in sizes
    return [name for name in sizes if begun(step_of(name)) and ours(_split(name)[1])]


def small(sizes: dict[str, int]) -> list[str]:
    """Returns the files that a run writes beside its folders: config.json, metrics.jsonl, ..."""
    return [name for name in sizes if name and "/" not in name and not name.startswith(".")]


def step_of(name: str) -> str:
    """Returns the step that a file belongs to, empty for one of none."""
    return _split(name)[0]


def number(step: str) -> int:
    return int(step.split("/")[1])


def newest(steps: Iterable[str]) -> int:
    """Returns the number of the newest checkpoint, -1 where there is none."""
    return max((number(s) for s in steps if s.startswith(CHECKPOINTS)), default=-1)


def get(fs, key: str, paths: dict[str, Path]) -> None:
    """Copies files, by name there, to paths here, and makes their folders."""
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    for part in _parts(list(paths)):
        fs.get([f"{key}/{name}" for name in part], [str(paths[name]) for name in part])


def put_step(fs, key: str, step: str, folder: Path, files: list[str]) -> None:
    """Uploads a step from its folder here; until the last file is there it does not count."""
    at = f"{key}/{step}"
    for part in _parts(files):
        fs.put([str(folder / name) for name in part], [f"{at}/{name}" for name in part])
    fs.pipe_file(f"{at}/{checksums.NAME}", (folder / checksums.NAME).read_bytes())


def remove_step(fs, key: str, step: str, found: Step, sizes: dict[str, int]) -> None:
    """Removes what a step's list names, and last the list, which says what was ours."""
    remove(fs, key, [name for f in found.files if (name := f"{step}/{f}") in sizes])
    remove(fs, key, [f"{step}/{checksums.NAME}"])


def remove(fs, key: str, names: list[str]) -> None:
    if names:
        fs.rm([f"{key}/{name}" for name in names])


def _split(name: str) -> tuple[str, str]:
    found = STEP.fullmatch(name)
    return (found[1], found[2]) if found else ("", "")


def _parts(names: list[str]) -> Iterable[list[str]]:
    return (names[i : i + TOGETHER] for i in range(0, len(names), TOGETHER))
