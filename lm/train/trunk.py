"""Runs of several lengths that share their trunk, the part of a constant learning rate.

Under schedule=wsd all lengths are alike up to their decay (Hu et al. 2024, section 4.4). A run with
optim.keep_trunk keeps a checkpoint from there in trunk/, and a longer run may start from it: it
ends with the same bits as if it had been trained from the beginning.
"""

import math
import shutil
from pathlib import Path
from typing import Any

from lm import budget, group
from lm.config import BUDGETS, Config, to_dict
from lm.errors import BadInput, CannotSave
from lm.optim.schedules import decay_start, warmup_steps
from lm.progress import say
from lm.train import workdir as files
from lm.train.checkpoint import Checkpoints
from lm.train.state import TrainState
from lm.whole_file import replacing

FOLDER = "trunk"
TAIL = 0.05  # train_loss is the mean over this last share of the steps


def tail_start(n_steps: int) -> int:
    """Returns the last step that train_loss does not count."""
    return n_steps - max(1, math.floor(TAIL * n_steps))


def end(c: Config) -> int | None:
    """Returns the step whose state a run keeps as a trunk; None: it keeps none."""
    if not c.optim.keep_trunk:
        return None
    n = budget.horizon(c).steps
    return min(decay_start(c.optim, n), tail_start(n)) or None


def family(c: Config) -> str:
    """Returns what runs must have in common to be branches of one trunk, as text to compare."""
    plain = to_dict(c)
    for name in BUDGETS:
        del plain["train"][name]
    return repr((plain, warmup_steps(c.optim, budget.horizon(c).steps)))


def check(trunk: Path, c: Config, corpus_sha256: str) -> None:
    """Raises BadInput where a run of `c` cannot start from the trunk in a work folder."""
    if not (trunk / "config.json").is_file():
        raise BadInput(f"{trunk} holds no run to branch from: give a shorter run's work folder")
    theirs, facts = files.saved_config(trunk)
    budgets = {f"train.{name}" for name in BUDGETS}
    lines = [
        f"{field} is {change.then!r} there and {change.now!r} now"
        for field, change in files.difference(to_dict(c), to_dict(theirs)).items()
        if field not in budgets
    ]
    if facts.get("corpus_sha256") != corpus_sha256:
        lines.append("the corpus is another")
    if not lines and family(c) != family(theirs):
        lines.append("the warm-up has another number of steps: set optim.warmup_steps")
    if not lines and end(theirs) is None:
        lines.append("it keeps no trunk: set optim.keep_trunk and optim.schedule=wsd")
    if not lines and (end(theirs) or 0) > (end(c) or 0):
        lines.append(f"it was kept at step {end(theirs)} and this run leaves it at {end(c)}")
    if lines:
        raise BadInput(f"{trunk} is no trunk of this run: {'; '.join(lines)}")


def take(
    trunk: Path, c: Config, abstract: TrainState, workdir: Path
) -> tuple[TrainState, dict[str, Any]]:
    """Returns the trunk's state and standing, and writes its logged rows into the work folder."""
    found = Checkpoints(trunk / FOLDER, c.checkpoint, read_only=True).restore(abstract)
    if found is None:
        raise BadInput(f"{trunk / FOLDER} has no checkpoint: train the trunk to its decay first")
    step = int(found[0].step)
    if group.first():
        _copy(trunk / "metrics.jsonl", workdir / "metrics.jsonl")  # cut at the step when opened
    say(f"{workdir.name}: starts from step {step} of {trunk}")
    return found


def _copy(source: Path, path: Path) -> None:
    try:
        with replacing(path) as temporary:
            shutil.copyfile(source, temporary)
    except OSError as e:
        raise CannotSave(f"cannot copy {source} to {path}: {e.strerror}") from e
