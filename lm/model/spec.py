"""What a parameter is: one row of shape, logical axes and initial values.

Shardings, counts, the decay mask, the optimizer's choice of matrices and the initial values all
derive from these rows. Alphabet of shape suffixes, everywhere in the library:
B batch, T query position, S key position, D model width, N query heads, K key-value heads,
G query heads per key-value head, H head width, F FFN width, V vocabulary, L layers.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ParamSpec:
    """One parameter. `std` None means a constant `fill`; otherwise normal with that deviation."""

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
        """Index of the first dimension after any layer axis."""
        return 1 if self.axes[0] == "layers" else 0

    def stacked(self, n_layers: int) -> "ParamSpec":
        """Returns this row with a leading layer axis."""
        return dataclasses.replace(self, shape=(n_layers, *self.shape), axes=("layers", *self.axes))

    def initial(self, seed: int, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Returns one shard of the initial values, float32: the same on any mesh.

        Drawn on the host, one stream per (seed, name, layer): a shard is cut from the full
        matrix of its layer, so neither the mesh nor another parameter can change a value.
        """
        if self.std is None:
            shape = tuple(len(range(*s.indices(n))) for s, n in zip(index, self.shape, strict=True))
            return np.full(shape, self.fill, np.float32)
        if self.matrix_start:
            layers = range(*index[0].indices(self.shape[0]))
            return np.stack([self._matrix(seed, f"{name}/{i}")[index[1:]] for i in layers])
        return self._matrix(seed, name)[index]

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
