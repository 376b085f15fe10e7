"""Fully sharded weights are gathered for a layer and again for its backward, never kept between."""

import math
import re
from collections import Counter

import jax
import pytest
from test_layouts import ROWS, T, config
from test_step import Run

from lm.collectives import varying
from lm.config import MeshConfig
from lm.layout import MODEL
from lm.model.spec import Table, flatten
from lm.train import state as train_state
from lm.train.state import param_specs


def shapes_and_body(run: Run):
    """(shapes of parameters and tokens, the model's body on every device)"""
    table, rows = run.model.table, run.layout.batch
    params = train_state.abstract(table, run.tx, run.layout).params
    body = run.layout.on_devices(
        lambda p, tokens: run.model.body(varying(p), tokens),
        (param_specs(table, run.layout), rows.spec),
        jax.P(rows.spec[0], MODEL),
    )
    return (params, jax.ShapeDtypeStruct((ROWS, T), "int32")), body


def kept_sizes(run: Run) -> list[int]:
    """Values of each array in the compute dtype that the backward reads of the forward, on all
    devices: weights as gathered are, shards are float32."""
    shapes, body = shapes_and_body(run)
    with jax.set_mesh(run.layout.mesh):
        vjp = jax.eval_shape(lambda p, t: jax.vjp(lambda p: body(p, t), p)[1], *shapes)
    return [x.size for x in jax.tree.leaves(vjp) if x.dtype == run.c.precision.compute]


def used_rows(run: Run) -> Table:
    """Rows of the weights that a layer gathers."""
    rows = flatten(run.model.table).items()
    return {n: r for n, r in rows if n.startswith("blocks/") and r.sharded_dim is not None}


def used_sizes(run: Run) -> set[int]:
    """Values of each weight of the layers as it goes into a product, on all devices."""
    m, layout = run.c.model, run.layout
    found = set()
    for name, row in used_rows(run).items():
        # Of key-value heads that every device has, each uses one.
        split = layout.model_size if MODEL in layout.spec(name, row) else 1
        split = m.kv_heads if "kv_heads" in row.axes and layout.model_size > split else split
        layers = 1 if m.scan_layers else m.n_layers
        found.add(layout.mesh.size * math.prod(row.shape) // split // layers)
    return found


def sharded(mesh: MeshConfig, scanned: bool) -> Run:
    sizes = dict(d_model=24, d_ff=40, n_kv_heads=2)  # no activation has as many values as a weight
    return Run(config(mesh, scan_layers=scanned, compute="bfloat16", **sizes))


@pytest.mark.parametrize("mesh, scanned", [(MeshConfig(8), False), (MeshConfig(2, 4), True)])
def test_no_gathered_weight_waits_for_the_backward(mesh, scanned):
    run = sharded(mesh, scanned)
    assert not used_sizes(run).intersection(kept_sizes(run))


def test_only_the_gathers_are_done_again(monkeypatch):
    run = sharded(MeshConfig(8), True)

    def operations() -> Counter:
        shapes, body = shapes_and_body(run)
        with jax.set_mesh(run.layout.mesh):
            program = jax.make_jaxpr(jax.grad(lambda p, t: body(p, t).sum()))(*shapes)
        return Counter(re.findall(r" = (dot_general|exp|rsqrt|all_gather)\b", str(program)))

    again = operations()
    monkeypatch.setattr("lm.model.transformer.gathers_weights", lambda: False)
    assert used_sizes(run).issubset(kept_sizes(run))  # of all weights: the test above can fail
    assert again - operations() == {"all_gather": len(used_rows(run))}
