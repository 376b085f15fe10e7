"""Muon (Jordan et al. 2024) for hidden matrices, AdamW for embeddings, head, norms and biases."""

import math

import jax
import optax

from lm.config import OptimConfig
from lm.model.spec import ParamSpec, Table, each


def scale_by_muon(o: OptimConfig, table: Table) -> optax.GradientTransformation:
    """Returns updates: orthogonalised momentum for matrices, Adam's direction for the rest.

    A matrix's update is U V' of its Nesterov momentum (muon_iterations Newton-Schulz steps), times
    sqrt(max(1, n_out / n_in)) and muon_learning_rate / learning_rate, so that one schedule scales
    both groups. Stacked layers are orthogonalised one by one.
    """
    from optax.contrib import MuonDimensionNumbers
    from optax.contrib import scale_by_muon as orthogonalised_momentum

    def dimensions(row: ParamSpec):
        first, n_in = row.matrix_start, row.n_in
        return MuonDimensionNumbers(
            tuple(range(first, first + n_in)), tuple(range(first + n_in, len(row.shape)))
        )

    def factor(row: ParamSpec) -> float:
        sizes = row.shape[row.matrix_start :]
        n_in, n_out = math.prod(sizes[: row.n_in]), math.prod(sizes[row.n_in :])
        return math.sqrt(max(1.0, n_out / n_in)) * o.muon_learning_rate / o.learning_rate

    def matrices_of(make):
        return each(table, lambda _, row: make(row) if row.hidden_matrix else optax.MaskedNode())

    factors = matrices_of(factor)
    matrices = optax.chain(
        orthogonalised_momentum(
            ns_steps=o.muon_iterations,
            beta=o.muon_momentum,
            weight_dimension_numbers=matrices_of(dimensions),
        ),
        optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * f, updates, factors)),
    )
    labels = each(table, lambda _, row: "matrix" if row.hidden_matrix else "rest")
    rest = optax.scale_by_adam(o.b1, o.b2, o.eps)
    return optax.partition({"matrix": matrices, "rest": rest}, labels)
