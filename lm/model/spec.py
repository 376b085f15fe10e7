"""What a parameter is: one row of shape, logical axes and initial values.

Shardings, counts, the decay mask, the optimizer's choice of matrices and the initial values all
derive from these rows. Alphabet of shape suffixes, everywhere in the library:
B batch, T query position, S key position, D model width, N query heads, K key-value heads,
G query heads per key-value head, H head width, F FFN width, V vocabulary, L layers.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LAYER_AXES = ("repeats", "layers")


@dataclass(frozen=True)
class ParamSpec:
    """One parameter. `std` None means a constant `fill`; otherwise normal with that deviation.

    A deviation of 0 is a matrix, decayed and sharded like the others, that starts as zeros.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # logical names, one a dimension; lm/layout.py maps them
    std: float | None = None
    fill: float = 0.0
    n_in: int = 1  # leading dimensions, after any layer axis, that a matrix contracts with
    zero_rows_from: int | None = None  # padding rows of the vocabulary start as zeros

    @property
    def decayed(self) -> bool:
        """Weight decay applies to matrices: not to norms, biases or constants."""
        return self.std is not None

    @property
    def hidden_matrix(self) -> bool:
        """A matrix between hidden vectors: what Muon orthogonalises."""
        return self.std is not None and "vocab" not in self.axes and "position" not in self.axes

    @property
    def sharded_dim(self) -> int | None:
        """Index of the dimension that fully sharded training splits: a matrix's model width.

        Norms and biases stay whole: gathering them would cost more than it saves.
        """
        return self.axes.index("embed") if self.std is not None and "embed" in self.axes else None

    @property
    def matrix_start(self) -> int:
        """Index of the first dimension after any layer axes."""
        return sum(axis in LAYER_AXES for axis in self.axes)

    def stacked(self, n_layers: int, repeats: int) -> "ParamSpec":
        """Returns this row with a leading layer axis, in `repeats` parts if there is more than one.

        Layer i is at (i // (n_layers / repeats), i % (n_layers / repeats)): an interleaved pipeline
        splits the second axis, so that each stage has layers of every part.
        """
        sizes: tuple[int, ...] = (n_layers,) if repeats == 1 else (repeats, n_layers // repeats)
        axes = LAYER_AXES[-len(sizes) :]
        return dataclasses.replace(self, shape=(*sizes, *self.shape), axes=(*axes, *self.axes))

    def initial(self, seed: int, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Returns one shard of the initial values, float32: the same on any mesh.

        Drawn on the host, one stream per (seed, name, layer): a shard is cut from the full
        matrix of its layer, so neither the mesh nor another parameter can change a value.
        """
        if not self.std:
            shape = tuple(len(range(*s.indices(n))) for s, n in zip(index, self.shape, strict=True))
            return np.full(shape, self.fill, np.float32)
        first = self.matrix_start
        if first == 0:
            return self._matrix(seed, name)[index]
        numbers = np.arange(math.prod(self.shape[:first])).reshape(self.shape[:first])[
            index[:first]
        ]
        layers = [self._matrix(seed, f"{name}/{i}")[index[first:]] for i in numbers.flat]
        return np.stack(layers).reshape(*numbers.shape, *layers[0].shape)

    def _matrix(self, seed: int, name: str) -> np.ndarray:
        shape = self.shape[self.matrix_start :]
        digest = hashlib.sha256(f"{seed}/init/{name}".encode()).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        values = rng.standard_normal(shape, np.float32) * np.float32(self.std)
        if self.zero_rows_from is not None:
            axis = self.axes.index("vocab")
            np.moveaxis(values, axis, 0)[self.zero_rows_from :] = 0.0
        return values


Table = dict[str, Any]  # nested dicts of ParamSpec


def flatten(table: Table, prefix: str = "") -> dict[str, ParamSpec]:
    """Returns {path: row}, paths joined by '/'."""
    rows: dict[str, ParamSpec] = {}
    for name, value in table.items():
        if isinstance(value, ParamSpec):
            rows[prefix + name] = value
        else:
            rows |= flatten(value, f"{prefix}{name}/")
    return rows


def each(table: Table, make: Callable[[str, ParamSpec], Any], prefix: str = "") -> Any:
    """Returns the parameters' tree of make(path, row)."""
    return {
        k: make(prefix + k, v) if isinstance(v, ParamSpec) else each(v, make, f"{prefix}{k}/")
        for k, v in table.items()
    }
