"""Dataclasses from plain values: types enforced, unknown names answered with the nearest one."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from lm.errors import BadInput


def field_type(root: Any, key: str) -> Any:
    """Returns the type of a dotted field; raises BadInput with the nearest name for a typo."""
    cls = root
    names = key.split(".")
    for depth, name in enumerate(names):
        hints = typing.get_type_hints(cls) if dataclasses.is_dataclass(cls) else {}
        if name not in hints:
            raise BadInput(
                f"there is no config field {key!r}"
                f"{_nearest(root, names[:depth], name, hints, names[depth + 1 :])}"
            )
        cls = hints[name]
    if dataclasses.is_dataclass(cls):
        raise BadInput(
            f"config field {key!r} is a group: name a field in it, such as "
            f"{key}.{dataclasses.fields(cls)[0].name}"
        )
    return cls


def _nearest(
    root: Any, prefix: list[str], name: str, hints: Mapping[str, Any], rest: list[str] | None = None
) -> str:
    """Returns the end of a sentence about `name` after `prefix`; `rest` are the names after it."""
    near = get_close_matches(name, hints, 1, 0.5)
    if not near:  # perhaps the right field in the wrong group
        near_leaf = [
            g
            for g, t in typing.get_type_hints(root).items()
            if dataclasses.is_dataclass(t) and name in typing.get_type_hints(t)
        ]
        if near_leaf:
            return f": did you mean {near_leaf[0]}.{name}?"
        return f": the fields of {'.'.join(prefix) or 'the config'} are {', '.join(hints)}"
    group = (
        typing.get_type_hints(hints[near[0]]) if dataclasses.is_dataclass(hints[near[0]]) else {}
    )
    field = get_close_matches(rest[0], group, 1, 0.5) if rest else []
    return f": did you mean {'.'.join([*prefix, near[0], *field])}?"


_hints = functools.cache(typing.get_type_hints)


def build(root: Any, values: Mapping[str, Any], where: str) -> Any:
    """Returns an instance of the dataclass `root` from nested mappings that name every field."""
    return _build_group(root, root, values, where, "")


def _build_group(root: Any, cls: Any, values: Mapping[str, Any], where: str, prefix: str) -> Any:
    hints = _hints(cls)
    done = {}
    if not hasattr(values, "items"):  # a ConfigDict is not a Mapping
        raise BadInput(
            f"{prefix.removesuffix('.')} in {where} must be a group of fields, not {values!r}"
        )
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in hints:
            raise BadInput(
                f"{where} has an unknown field {key!r}"
                f"{_nearest(root, prefix.split('.')[:-1], name, hints)}"
            )
        if dataclasses.is_dataclass(hints[name]):
            done[name] = _build_group(root, hints[name], value, where, f"{key}.")
        else:
            done[name] = convert(key, value, hints[name], where)
    missing = [name for name in hints if name not in done]
    if missing:
        raise BadInput(
            f"{where} lacks the field {prefix}{missing[0]!s}: start from "
            "lm.config.default_config(), which is complete"
        )
    return cls(**done)


def convert(key: str, value: Any, kind: Any, where: str = "the config") -> Any:
    """Returns value as the field's type; 1e6 is an integer because it is one."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and types.NoneType in options:
        return None
    kind = options[0]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and number and _whole(value):
        return int(value)
    if kind is float and number:
        return _as_float(value)
    if kind is str and isinstance(value, str):
        return value
    if kind is tuple and isinstance(value, list | tuple):
        return _tuple(value)
    wanted = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a word",
        tuple: "a list",
    }[kind]
    optional = " or none" if len(options) > 1 else ""
    raise BadInput(f"{key} in {where} must be {wanted}{optional}, not {_shown(value)}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes 4300 digits at most
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _whole(value: int | float) -> bool:
    return isinstance(value, int) or value.is_integer()


def _as_float(value: int | float) -> float:
    """Returns infinity for what no float holds: the checks of settings refuse it."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _tuple(values: Any) -> Any:
    """Returns lists as tuples, at any depth, and whole numbers in them as integers."""
    if isinstance(values, list | tuple):
        return tuple(map(_tuple, values))
    return int(values) if isinstance(values, float) and _whole(values) else values
