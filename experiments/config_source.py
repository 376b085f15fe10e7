"""Where a command's config comes from: a file, then a flag file, then the command line.

Command line beats flag file beats config file; later beats earlier.
"""

import ast
import dataclasses
import json
import runpy
import types
import typing
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli
from lm.config import BUDGETS, Config, field_type, freeze
from lm.errors import BadInput
from lm.json_text import loads
from lm.train.workdir import PROVENANCE
from lm.typed import build, convert

_CONFIG = flags.DEFINE_string(
    "config", None, "a config file: a .py with get_config(), or a saved config.json"
)


@dataclasses.dataclass(frozen=True)
class ConfigSource:
    """A config file with everything that was said on top of it."""

    path: str
    file: dict[str, Any]
    points: list[dict[str, Any]]  # the file's sweep; empty for a single run
    groups: list[str] | None  # the variant of each point, where the file is an ablation
    held_out: dict[str, Any] | None  # a larger run to predict before it is trained
    overrides: list[tuple[str, list[tuple[str, Any]]]]

    def config(self, point: dict[str, Any] | None = None) -> Config:
        """Returns the checked config of one point of the sweep, or of the file itself."""
        values = json.loads(json.dumps(self.file))
        if point:
            values = _apply(values, list(point.items()), "the sweep")
        for where, pairs in self.overrides:
            values = _apply(values, pairs, where)
        return freeze(values, self.path)


def from_flags() -> ConfigSource:
    """Returns the source named by --config and --config.* of this process's command line."""
    if not _CONFIG.value:
        raise BadInput("no config given: add --config=experiments/configs/tiny.py or your own file")
    file, points, groups, held_out = _read(_CONFIG.value)
    whole = build(Config, file, _CONFIG.value)  # every field is there, before more is said on top
    _refuse_two(
        {f"train.{b}" for b in BUDGETS if getattr(whole.train, b) is not None}, _CONFIG.value
    )
    overrides = [
        (where, [(key, parse(key, text, where)) for key, text in pairs])
        for where, pairs in cli.config_overrides
    ]
    return ConfigSource(_CONFIG.value, file, points, groups, held_out, overrides)


def _read(
    path: str,
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str] | None, dict[str, Any] | None]:
    if not Path(path).is_file():
        raise BadInput(f"there is no config file {path}: check the name and the folder")
    if path.endswith(".json"):
        try:
            values = loads(Path(path).read_text())
        except ValueError as e:  # among them text that is not UTF-8
            raise BadInput(f"{path} is not valid JSON ({e}): give a saved config.json") from e
        if not isinstance(values, dict):
            raise BadInput(f"{path} holds a {type(values).__name__}: give a saved config.json")
        values.pop(PROVENANCE, None)
        return values, [], None, None
    if not path.endswith(".py"):
        raise BadInput(f"{path} is neither .py nor .json: give a config file of one of these kinds")
    try:
        module = runpy.run_path(path)
        config = module["get_config"]()
        points = module["get_sweep"]() if "get_sweep" in module else []
        ablation = module["get_ablation"]() if "get_ablation" in module else None
        held_out = module["get_held_out"]() if "get_held_out" in module else None
        file = json.loads(config.to_json()) if hasattr(config, "to_json") else None
    except (Exception, SystemExit) as e:  # whatever the user's own code raises
        if isinstance(e, KeyError) and e.args == ("get_config",):
            raise BadInput(f"{path} has no get_config(): add one returning a ConfigDict") from e
        said = " ".join(str(e.args[0] if isinstance(e, KeyError) and e.args else e).split())
        raise BadInput(f"{path} cannot be used: {type(e).__name__}: {said}") from e
    if file is None:
        raise BadInput(f"get_config() of {path} returns {config!r}: return a ConfigDict")
    if not isinstance(points, list) or not all(isinstance(p, dict) for p in points):
        raise BadInput(f"get_sweep() of {path} returns {points!r}: return a list of override dicts")
    if held_out is not None and not isinstance(held_out, dict):
        raise BadInput(f"get_held_out() of {path} returns {held_out!r}: return one override dict")
    if ablation is None:
        return file, points, None, held_out
    if points or held_out is not None or not isinstance(ablation, dict):
        raise BadInput(
            f"{path} has get_ablation(): it returns a dict, and stands alone without get_sweep() "
            "and get_held_out()"
        )
    from lm.sweep.ablation import settings

    found = settings(ablation, path)
    return file, [point for _, point in found], [name for name, _ in found], None


def _apply(values: dict[str, Any], pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    for key, _ in pairs:
        if not isinstance(key, str):
            raise BadInput(
                f"{where} names the field {key!r}: write it as text, 'model.d_model' say"
            )
    last = dict(pairs)  # of a field said twice the last word counts
    budgets = {k for k in last if k.removeprefix("train.") in BUDGETS and last[k] is not None}
    _refuse_two(budgets, where)
    if budgets:  # a budget said later replaces the one said before
        values["train"] |= {b: None for b in BUDGETS}
    for key, value in pairs:
        value = convert(key, value, field_type(key), where)
        *groups, leaf = key.split(".")
        group = values
        for name in groups:
            group = group[name]
        group[leaf] = value
    return values


def _refuse_two(budgets: set[str], where: str) -> None:
    """Raises BadInput where one source, a file or a command line, sets several budgets."""
    if len(budgets) > 1:
        raise BadInput(
            f"two budgets are set by {where}, {' and '.join(sorted(budgets))}: give one of them"
        )


def parse(key: str, text: str, where: str) -> Any:
    """Returns the value that a text on the command line stands for, by the field's type."""
    kind = field_type(key)
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if types.NoneType in options and text.lower() == "none":
        return None
    if options[0] is str:
        return text
    if options[0] is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    if options[0] is bool:
        return convert(key, text, kind, where)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text) if options[0] is tuple else float(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return convert(key, text, kind, where)
