"""Evaluation on the whole validation split, every target once."""

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from lm import group
from lm.config import Config
from lm.data.build import Batch, Dataset
from lm.layout import Layout
from lm.model.transformer import Model
from lm.progress import Progress, say
from lm.train import reproducible
from lm.train.step import make_evaluate


class Evaluation(NamedTuple):
    loss: float  # nats per target
    bits_per_byte: float | None  # None where the text's bytes are not known
    by_source: dict[str, float]  # nats per target of each source of a mixture


def batch_size(c: Config, dataset: Dataset) -> int:
    """Returns the sequences evaluated at a time: eval.batch_size, but no more than there are; none:
    train.batch_size."""
    sets = dataset.parts.values() or [dataset]
    most = max(part.n_validation_sequences for part in sets)
    return min(c.eval.batch_size, most) if c.eval.batch_size else c.train.batch_size


class Evaluator:
    """Evaluates parameters on a data set's validation split; compiles once."""

    def __init__(self, model: Model, dataset: Dataset, layout: Layout, c: Config):
        sets = dataset.parts or {"": dataset}
        size = batch_size(c, dataset)
        parts = layout.data_size * (c.pipeline.microbatches if layout.stages > 1 else 1)
        if c.train.reproducible:
            parts = reproducible.parts(c.train)
        rows = -(-size // parts) * parts
        if size < (c.eval.batch_size or 0):
            say(f"eval.batch_size {c.eval.batch_size}: all {size} held-out sequences at once")
        self._dataset, self._layout = dataset, layout
        self._batches = {
            name: part.validation(rows, layout.local_rows(rows)) for name, part in sets.items()
        }
        self._loss_sum = jax.jit(make_evaluate(model, c, layout), out_shardings=layout.replicated)
        self._compiled: Callable | None = None

    def __call__(self, params) -> Evaluation:
        if self._compiled is None:
            first = next(iter(self._batches.values()))
            batch = self._layout.put_batch(first[0])
            self._compiled = self._loss_sum.lower(params, batch).compile()
            group.meet("compiled the evaluation")
        run = self._compiled
        # Sums of a batch in float32 on the device, of all batches in float64 here.
        # One at a time: simulated devices with two batches at once wait for each other for ever.
        n_batches = sum(map(len, self._batches.values()))
        progress = Progress("evaluating", n_batches, unit="batch", stays=False)
        done = itertools.count(1)

        def loss_sum(batch: Batch) -> float:
            found = float(np.asarray(run(params, self._layout.put_batch(batch))))
            progress.update(next(done))
            return found

        with contextlib.closing(progress):
            sums = {name: math.fsum(map(loss_sum, b)) for name, b in self._batches.items()}
        dataset, total = self._dataset, math.fsum(sums.values())
        n_bytes = dataset.validation_bytes
        return Evaluation(
            total / dataset.n_validation_tokens,
            total / math.log(2) / n_bytes if n_bytes else None,
            {n: sums[n] / part.n_validation_tokens for n, part in dataset.parts.items()},
        )
