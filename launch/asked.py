"""What the commands that read no data were asked for, checked; and how they write."""

import csv as csv_module
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import config_source
from lm.config import Config
from lm.errors import BadInput
from lm.whole_file import write as write_file


def config() -> Config:
    """Returns the config of the command line, which has to say its vocabulary size."""
    c = config_source.from_flags().config()
    if c.model.vocab_size is None:
        raise BadInput(
            "model.vocab_size is none and the data is not read here: add "
            "--config.model.vocab_size=N (256 for bytes)"
        )
    return c


def folder(value: str | None) -> Path | None:
    """Returns the folder of --out, None where none is asked for."""
    out = Path(value) if value else None
    if out and out.exists() and not out.is_dir():
        raise BadInput(f"--out={out} is a file: name a folder")
    return out


def write(out: Path | None, files: Mapping[str, str]) -> None:
    """Writes the texts by their file names, each whole, if a folder was asked for."""
    if out:
        for name, text in files.items():
            write_file(out / name, text, "choose another --out")


def report(path: str) -> dict[str, Any]:
    """Returns what a compile.json holds; BadInput for another file."""
    try:
        found = json.loads(Path(path).read_text())
        needed = ("config", "chip", "n_chips", "mesh", "batch_size", "predicted")
        return found | {key: found[key] for key in needed}
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise BadInput(f"--compiled={path} is no compile.json of launch.compile: {e}") from e


def csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as CSV; columns are those of any row, in the order in which they come up."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv_module.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
