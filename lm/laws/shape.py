"""Model sizes that can be built: a family of shapes, its exact counts, the shape nearest to an N.

A family scales one model: width, layers and heads grow together, everything else (vocabulary,
length, kind of FFN, tied or not) stays. Counts come from lm/budget.py and nowhere else.
"""

import dataclasses
from typing import Any

import numpy as np

from lm import budget
from lm.errors import BadInput

SPREAD = 2.0  # width / layers may leave the family's by this factor; losses hardly notice
LARGEST = 1e18  # parameters: beyond it a shape has more heads than one would list


class Family:
    """Shapes like `base`, in the convention "exact" of lm/laws/allocate.py.

    Within it width / layers, the head dimension and FFN width / width are those of `base`, so that
    N and FLOPs per token are cubic polynomials in the width. `log_size` is the log of the width.
    n_counts: "n_params" or "n_params_non_embedding", whatever N means in the law.
    """

    convention = "exact"
    bounds = (0.0, 20.0)

    def __init__(self, base: budget.ModelConfig, length: int, n_counts: str = "n_params"):
        if n_counts not in ("n_params", "n_params_non_embedding"):
            raise BadInput(f"N counts n_params or n_params_non_embedding, not {n_counts!r}")
        self.base, self.length, self.n_counts = base, length, n_counts
        self.aspect = base.d_model / base.n_layers
        if base.d_ff is not None:
            self.ff_ratio = base.d_ff / base.d_model
        else:
            self.ff_ratio = 8 / 3 if base.gated else 4.0
        widths = base.head_dim * np.array([1.0, 8.0, 64.0, 512.0])
        counts = np.array([self._count(w) for w in widths])
        # In units of the third width the system is well conditioned.
        self._unit = widths[2]
        self._n, self._train = np.linalg.solve(np.vander(widths / self._unit), counts).T
        w = 100.0 * base.head_dim
        if not np.allclose(self._polynomials(w), self._count(w), rtol=1e-9):
            raise AssertionError("counts are no longer cubic in the width: see lm/budget.py")

    def _model(self, width: Any, layers: Any, heads: Any, ff: Any) -> budget.ModelConfig:
        sizes: dict[str, Any] = {
            "d_model": width, "n_layers": layers, "n_heads": heads, "d_ff": ff,
            "d_head": self.base.head_dim,
        }  # fmt: skip
        return dataclasses.replace(self.base, **sizes)

    def _count(self, width: float) -> tuple[float, float]:
        model = self._model(
            width, width / self.aspect, width / self.base.head_dim, width * self.ff_ratio
        )
        n = getattr(budget, self.n_counts)(model)
        return n, budget.flops_per_token(model, self.length)

    def _polynomials(self, width: Any) -> tuple[Any, Any]:
        x = width / self._unit
        return np.polyval(self._n, x), np.polyval(self._train, x)

    def counts(self, log_size: Any) -> tuple[Any, Any, Any]:
        """Returns (N, training FLOPs per token, forward FLOPs per served token)."""
        n, train = self._polynomials(np.exp(log_size))
        return n, train, train / 3

    def log_size(self, n: Any) -> Any:
        """Returns the log width of N parameters (not a whole number); NaN below the smallest."""
        n = np.asarray(n, np.float64)
        low, high = np.full(n.shape, self.bounds[0]), np.full(n.shape, self.bounds[1])
        for _ in range(60):
            middle = (low + high) / 2
            small = self.counts(middle)[0] < n
            low, high = np.where(small, middle, low), np.where(small, high, middle)
        return np.where(n > self.counts(self.bounds[0])[0], high, np.nan)

    def smallest(self) -> int:
        """Returns N of one layer with one head."""
        return self._buildable(1, 1)[0]

    def nearest(self, n: float) -> dict[str, Any]:
        """Returns the buildable shape nearest to N: its fields of the model config and counts.

        Among widths of whole heads and whole layers it takes the least |log of N / wanted N|, with
        a small charge for a width / layers far from the family's and for heads that do not come in
        eights. Keys: d_model, n_layers,
        n_heads, n_kv_heads, d_head, d_ff, n_params, n_params_non_embedding, flops_per_token.
        Raises BadInput where N lies far below the smallest shape, or above LARGEST.
        """
        if not n > 0.7 * self.smallest():
            raise BadInput(
                f"no shape of this family has as few as {n:.3g} parameters (one layer with one "
                f"head of {self.base.head_dim} has {self.smallest():.3g}): give --config with a "
                "smaller vocabulary or head"
            )
        if n > LARGEST:
            raise BadInput(f"no shape of more than {LARGEST:g} parameters is looked for")
        width = float(np.exp(self.log_size(max(n, self.smallest()))))
        middle = width / self.base.head_dim
        best, best_score = (1, 1), np.inf
        for heads in range(max(1, int(middle / SPREAD**0.4)), int(middle * SPREAD**0.4) + 3):
            if self.base.n_kv_heads is not None and heads % self.base.n_kv_heads:
                continue
            one, two = self._buildable(heads, 1)[0], self._buildable(heads, 2)[0]
            wide = heads * self.base.head_dim / self.aspect  # layers at the family's own ratio
            fewest = max(1, int(np.ceil(wide / SPREAD)))
            most = max(fewest, int(wide * SPREAD))
            exact = int(1 + (n - one) / (two - one))
            for layers in sorted({min(max(exact + k, fewest), most) for k in (0, 1)}):
                miss = abs(np.log((one + (layers - 1) * (two - one)) / n))
                uneven = heads > 8 and heads % 8 != 0  # heads in eights divide over devices
                score = miss + 0.005 * abs(np.log(wide / layers)) + 0.003 * uneven
                if score < best_score:
                    best, best_score = (heads, layers), score
        return self._shape(*best)

    def _buildable(self, heads: int, layers: int) -> tuple[int, budget.ModelConfig]:
        width = heads * self.base.head_dim
        ff = None if self.base.d_ff is None else 8 * max(1, round(width * self.ff_ratio / 8))
        model = self._model(width, layers, heads, ff)
        return getattr(budget, self.n_counts)(model), model

    def _shape(self, heads: int, layers: int) -> dict[str, Any]:
        _, model = self._buildable(heads, layers)
        return {
            "d_model": model.d_model,
            "n_layers": layers,
            "n_heads": heads,
            "n_kv_heads": model.kv_heads,
            "d_head": model.head_dim,
            "d_ff": model.ff_dim,
            "vocab_size": model.vocab_size,
            "length": self.length,
            "n_params": budget.n_params(model),
            "n_params_non_embedding": budget.n_params_non_embedding(model),
            "flops_per_token": budget.flops_per_token(model, self.length),
        }


def default_family(n_counts: str = "n_params") -> Family:
    """Returns Llama-like shapes: 128 wide a layer, heads of 128, vocabulary 32000, length 2048."""
    base = budget.ModelConfig(
        vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, tie_embeddings=False,
        max_length=2048,
    )  # fmt: skip
    return Family(base, 2048, n_counts)
