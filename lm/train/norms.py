"""What log.layer_norms adds to a row: the size of each layer's gradient and output."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from lm.model.transformer import Model


def by_layer(model: Model, grads: Any, squares: jax.Array, n_values: int) -> dict[str, jax.Array]:
    """Returns "grad_norm/layer_0", "grad_norm/embedding", ..., "activation_rms/layer_0", ....

    The norm of a layer's gradient over all its parameters, before clipping, and the root mean
    square of its output over all tokens, padding included. squares: sums over the outputs.
    """

    def of_layers(g: jax.Array) -> jax.Array:
        rows = g.reshape(model.config.n_layers, -1)
        return jnp.square(rows).sum(1)

    layers = jnp.sqrt(sum(map(of_layers, jax.tree.leaves(grads["blocks"]))))
    outputs = jnp.sqrt(squares.reshape(-1) / n_values)
    named = {name: optax.tree.norm(g) for name, g in grads.items() if name != "blocks"}
    found = {f"grad_norm/{name}": norm for name, norm in named.items()}
    for i in range(model.config.n_layers):
        found[f"grad_norm/layer_{i}"] = layers[i]
        found[f"activation_rms/layer_{i}"] = outputs[i]
    return found
