"""One run: its folder claimed and locked, trained to the end, and what went wrong in a sentence."""

import contextlib
from pathlib import Path
from typing import Any

from lm import group
from lm.config import Config
from lm.errors import CannotSave, Diverged
from lm.platform import compile_as_written
from lm.progress import say
from lm.train import trunk
from lm.train import workdir as files
from lm.train.loop import Loop
from lm.train.mirror import Mirror, place, read_together
from lm.train.setup import Run, on_this_machine
from lm.train.standing import read_result
from lm.train.start import check as check_start
from lm.train.start import fetch
from lm.train.trackers import check as check_trackers


def train(c: Config, workdir: Path | str, branch_of: Path | str | None = None) -> dict[str, Any]:
    """Trains to the end of the budget, or goes on where the folder stands; returns result.json.

    branch_of: the work folder whose trunk to start from (lm/train/trunk.py), not from step 0.
    Folders may be addresses (lm/train/mirror.py).
    Raises BadInput, CannotSave, Diverged or Stopped with a sentence; in each case what is in the
    folder is whole and running again goes on from it. Every process of a group (lm/group.py) calls
    this; the first one writes the files.
    """
    if c.train.reproducible:
        compile_as_written()
    try:
        with contextlib.ExitStack() as held:
            kept = group.together(lambda: Mirror(workdir))
            kept.open(held)
            trunk_of = read_together(branch_of, trunk.FOLDER) if branch_of else None
            if not trunk_of:  # a branch begins from nothing else
                fetch(c.checkpoint, kept.folder)
            run = group.together(lambda: _claimed(c, kept, trunk_of, held))
            with kept.pushed():
                return _trained(run, kept, trunk_of)
    except OSError as e:
        if isinstance(e, CannotSave) or not _may_lie_in(e.filename, place(workdir)):
            raise
        named = f" ({e.filename})" if e.filename else ""
        raise CannotSave(f"cannot write in {workdir}: {e.strerror or e}{named}") from e


def _may_lie_in(file: Any, folder: Path) -> bool:
    """Whether a file that an error names, or does not name, is one of the folder."""
    return not file or Path(str(file)).absolute().is_relative_to(folder.absolute())


def _trained(run: Run, kept: Mirror, branch_of: Path | None) -> dict[str, Any]:
    # Read by all before any can write it: nobody goes on alone.
    done = group.together(lambda: _result_of(kept))
    if done is not None:
        if done["status"] == "finished":
            say(f"{kept.shown} is finished: eval_loss {done['eval_loss']:.4f}; nothing to do")
            return done
        if done["status"] == "diverged":
            raise Diverged(f"{kept.shown} diverged at step {done.get('steps')}: change the config")
    return Loop(run, kept, branch_of).result()


def _result_of(kept: Mirror) -> dict[str, Any] | None:
    path = kept.folder / "result.json"
    return read_result(path) if path.exists() else None


def _claimed(c: Config, kept: Mirror, branch_of: Path | None, held: contextlib.ExitStack) -> Run:
    """Returns the run's parts; its folder is this config's from here on, and locked while held."""
    check_trackers(c.log)
    if not branch_of:
        check_start(c, kept.folder)
    done = _result_of(kept)
    run = on_this_machine(c, ended=done is not None and done["status"] != "stopped")
    dataset = run.dataset
    if branch_of:
        trunk.check(branch_of, run.config, dataset.sha256)
    if group.first():
        kept.lock(held)
        facts = {"corpus_sha256": dataset.sha256, "tokenizer": dataset.tokenizer.spec}
        files.claim(kept.folder, run.config, facts)
        kept.push()
    return run
