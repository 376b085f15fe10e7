"""TensorBoard and Weights & Biases, from the very rows of metrics.jsonl: one run across restarts.

Both are extras. They get what metrics.jsonl gets, after it; nothing is computed for them, and
nothing is read back from them.
"""

import contextlib
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lm.config import Config, LogConfig, to_dict
from lm.errors import BadInput, installed_by
from lm.progress import warn
from lm.train.workdir import read_json, write_json

TENSORBOARD = "tensorboard"  # folder in the work folder
WANDB = "wandb.json"  # file in the work folder: the tracked run's id


class Tracker(Protocol):
    def write(self, row: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def check(c: LogConfig) -> None:
    """Raises BadInput where a tracker is asked for that is not installed."""
    for asked, package in ((c.tensorboard, "tensorboard"), (c.wandb, "wandb")):
        if asked:
            try:
                __import__(package)
            except ImportError as e:
                raise BadInput(
                    f"log.{package} needs a package that is not installed: "
                    f"{installed_by(package)}, or leave it out"
                ) from e


def trackers(c: Config, workdir: Path) -> list[Tracker]:
    """Returns the trackers that the config asks for. metrics.jsonl holds the rows up to the
    restored step by then."""
    made: list[Tracker] = []
    if c.log.tensorboard:
        made.append(TensorBoard(workdir))
    if c.log.wandb:
        made.append(WeightsAndBiases(c, workdir))
    return made


def scalars(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Returns a row's numbers by name: groups of them joined by slashes, unknown ones left out."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= scalars(value, f"{prefix}{name}/")
        elif value is not None and name != "step":
            found[prefix + name] = value
    return found


class TensorBoard:
    """Event files in the work folder. A restart writes them anew from metrics.jsonl: rows after the
    restored step would otherwise stay beside those that replace them."""

    def __init__(self, workdir: Path):
        from tensorboard.summary import Writer

        folder = workdir / TENSORBOARD
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = Writer(str(folder))
        metrics = workdir / "metrics.jsonl"
        for line in metrics.read_text().splitlines() if metrics.exists() else ():
            self.write(json.loads(line))

    def write(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One run of a project, whose id is kept in the work folder. Rows that a restart repeats are
    left out there: they are the same to the bit. WANDB_MODE=offline writes to the work folder."""

    def __init__(self, c: Config, workdir: Path):
        import wandb

        self._run: Any = None  # None: it failed
        path = workdir / WANDB
        if not path.exists():
            write_json(path, {"id": uuid.uuid4().hex[:12]})
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # stdout is for result.json
                self._run = wandb.init(
                    project=c.log.wandb,
                    name=workdir.name,
                    id=read_json(path)["id"],
                    resume="allow",
                    dir=str(workdir),
                    config=to_dict(c),
                    settings=wandb.Settings(silent=True, console="off"),
                )
        except (wandb.Error, OSError) as e:
            raise BadInput(
                f"Weights & Biases cannot be used ({str(e).splitlines()[0]}): log in, set "
                "WANDB_MODE=offline, or leave log.wandb out"
            ) from e

    def write(self, row: dict[str, Any]) -> None:
        self._try(lambda run: run.log(scalars(row), step=row["step"]))

    def close(self) -> None:
        self._try(lambda run: run.finish())

    def _try(self, call: Callable[[Any], Any]) -> None:
        """A service that fails in mid-run does not end training: metrics.jsonl has the rows."""
        if self._run is None:
            return
        try:
            call(self._run)
        except Exception as e:  # whatever the client and its connection raise
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            warn(f"Weights & Biases gets no more rows of this run ({reason}); training goes on")
            self._run = None
