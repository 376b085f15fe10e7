"""Every optimizer in NumPy float64, as its paper writes it: the twin of lm/optim."""

import math
from fnmatch import fnmatchcase

import numpy as np

from lm.config import OptimConfig
from lm.model.spec import ParamSpec


class Twin:
    """Updates for a learning rate of 1, from the gradients of each step in turn."""

    def __init__(self, o: OptimConfig, rows: dict[str, ParamSpec]):
        self.o, self.rows, self.t = o, rows, 0
        self.memory: dict = {name: {} for name in rows}

    def rule(self, name: str) -> str:
        matrix = self.rows[name].std is not None and name.startswith("blocks")
        return "adamw" if self.o.optimizer == "muon" and not matrix else self.o.optimizer

    def updates(self, gradients: dict, params: dict) -> dict:
        self.t += 1
        return {n: self._update(n, g.astype(np.float64), params[n]) for n, g in gradients.items()}

    def _update(self, name: str, g: np.ndarray, p: np.ndarray) -> np.ndarray:
        o, row = self.o, self.rows[name]
        u = getattr(self, f"_{self.rule(name)}")(row, g, self.memory[name])
        limit = o.clip_update or (1.0 if self.rule(name) == "adafactor" else math.inf)
        if row.matrix_start:
            u = np.stack([_clipped(layer, limit) for layer in u])
        else:
            u = _clipped(u, limit)
        matrix = row.std is not None
        if matrix and not any(fnmatchcase(name, pattern) for pattern in o.no_decay):
            u = u + o.weight_decay * p
        return u * next((f for q, f in o.learning_rate_factors if fnmatchcase(name, q)), 1.0)

    def _adamw(self, row, g, memory):
        """Loshchilov and Hutter 2019, algorithm 2."""
        o = self.o
        m = memory["m"] = o.b1 * memory.get("m", 0) + (1 - o.b1) * g
        v = memory["v"] = o.b2 * memory.get("v", 0) + (1 - o.b2) * g**2
        return m / (1 - o.b1**self.t) / (np.sqrt(v / (1 - o.b2**self.t)) + o.eps)

    def _lion(self, row, g, memory):
        """Chen et al. 2023, algorithm 2."""
        o, m = self.o, memory.get("m", 0)
        memory["m"] = o.b2 * m + (1 - o.b2) * g
        return np.sign(o.b1 * m + (1 - o.b1) * g)

    def _sgd(self, row, g, memory):
        m = memory["m"] = self.o.b1 * memory.get("m", 0) + g
        return m

    def _adafactor(self, row, g, memory):
        """Shazeer and Stern 2018, algorithms 4 and 5, a layer at a time."""
        keep, square = 1 - self.t**-0.8, g**2 + 1e-30
        if row.std is None:
            v = memory["v"] = keep * memory.get("v", 0) + (1 - keep) * square
            return g / np.sqrt(v)
        matrices = _matrices(row, square)
        r = memory["r"] = keep * memory.get("r", 0) + (1 - keep) * matrices.mean(2)
        c = memory["c"] = keep * memory.get("c", 0) + (1 - keep) * matrices.mean(1)
        v = r[:, :, None] * c[:, None, :] / r.mean(1)[:, None, None]
        return g / np.sqrt(v.reshape(g.shape))

    def _muon(self, row, g, memory):
        """Jordan et al. 2024, with momentum corrected for its start at 0."""
        o, b = self.o, self.o.muon_momentum
        m = memory["m"] = b * memory.get("m", 0) + (1 - b) * g
        nesterov = b * m / (1 - b ** (self.t + 1)) + (1 - b) * g / (1 - b**self.t)
        done = []
        for matrix in _matrices(row, nesterov):
            x = matrix / np.linalg.norm(matrix)
            for _ in range(o.muon_iterations):
                a = x @ x.T
                x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
            done.append(x * math.sqrt(max(1.0, x.shape[1] / x.shape[0])))
        return np.stack(done).reshape(g.shape) * o.muon_learning_rate / o.learning_rate


def _matrices(row: ParamSpec, x: np.ndarray) -> np.ndarray:
    """[layers, n_in, n_out]."""
    first = row.matrix_start
    n_in = math.prod(row.shape[first : first + row.n_in])
    return x.reshape(math.prod(row.shape[:first]), n_in, -1)


def _clipped(u: np.ndarray, limit: float) -> np.ndarray:
    return u / max(1.0, np.sqrt((u**2).mean()) / limit)
