"""The arrays of a train state by path: what a checkpoint holds, and how two states differ."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax

NAME = "leaves.json"
Leaves = dict[str, list]  # path -> [dtype, *shape]


class Difference(NamedTuple):
    kind: str  # "missing": not in theirs; "extra": only there; "dtype"; "grown"; "shape"
    path: str
    text: str


def leaves(tree: Any) -> Leaves:
    """Returns {path: [dtype, *shape]} of a tree of arrays."""
    return {path: [str(x.dtype), *x.shape] for path, x in by_path(tree).items()}


def by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree under their paths, parts joined by slashes."""
    return {name(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def saved(folder: Path) -> Leaves:
    """Returns what the checkpoint in a folder holds."""
    return json.loads((folder / NAME).read_text())


def with_dtypes(abstract: Any, theirs: Leaves) -> Any:
    """Returns an abstract tree in the dtypes that were saved."""

    def of(path: tuple, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        dtype = theirs.get(name(path), [x.dtype])[0]
        return jax.ShapeDtypeStruct(x.shape, dtype, sharding=x.sharding)

    return jax.tree_util.tree_map_with_path(of, abstract)


def differences(theirs: Leaves, ours: Leaves) -> list[Difference]:
    """Returns how what was saved differs from what is wanted, path by path."""
    found = [Difference("missing", p, f"{p} is missing there") for p in ours if p not in theirs]
    found += [Difference("extra", p, f"{p} is only there") for p in theirs if p not in ours]
    for path in ours:
        (dtype, *shape), (their_dtype, *their_shape) = ours[path], theirs.get(path, ours[path])
        if shape != their_shape:
            within = len(shape) == len(their_shape) and all(
                a <= b for a, b in zip(their_shape, shape, strict=True)
            )
            text = f"{path} is {_size(their_shape)} there and {_size(shape)} here"
            found.append(Difference("grown" if within else "shape", path, text))
        if dtype != their_dtype:
            found.append(
                Difference("dtype", path, f"{path} is {their_dtype} there and {dtype} here")
            )
    return found


def shown(found: list[Difference]) -> str:
    """Returns the first differences in words."""
    more = f"; and {len(found) - 8} more" if len(found) > 8 else ""
    return "; ".join(d.text for d in found[:8]) + more


def _size(shape: list[int]) -> str:
    return " x ".join(map(str, shape)) or "one value"
