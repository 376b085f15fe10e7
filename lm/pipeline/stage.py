"""What a pipeline stage does with one layer: forward, backward, and the backward in two parts.

A forward returns what the backward needs beside the parameters: the layer's input, from which the
backward computes the layer again, or the residuals of its gradient. The two parts of a backward are
cut out of its jaxpr: the equations that the input's cotangent needs, and the rest, which computes
the weights' gradients from values that the first part hands on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Tree = Any
# f(parameters of one layer, x [B, T, D], extra) -> [B, T, D]; extra: whatever else it reads
Layer = Callable[[Tree, jax.Array, Tree], jax.Array]


class Pieces(NamedTuple):
    """Functions of one layer; `kept` is what forward left, `deferred` what input left."""

    forward: Callable  # (p, x, extra) -> (y, kept)
    backward: Callable  # (p, kept, cotangent, extra) -> (dx, dp)
    input: Callable  # (p, kept, cotangent, extra) -> (dx, deferred)
    weight: Callable  # (p, kept, deferred, extra) -> dp


def recomputing(layer: Layer) -> Pieces:
    """Returns the pieces that keep only a layer's input."""

    def backward(p, kept, ct, extra):
        _, vjp = jax.vjp(lambda p, x: layer(p, x, extra), p, kept)
        dp, dx = vjp(ct)
        return dx, dp

    return _with_parts(lambda p, x, extra: (layer(p, x, extra), x), backward)


def keeping(layer: Layer) -> Pieces:
    """Returns the pieces that keep the residuals of a layer's gradient, parameters left out."""
    known: dict[str, Any] = {}

    def forward(p, x, extra):
        y, vjp = jax.vjp(lambda p, x: layer(p, x, extra), p, x)
        leaves, known["tree"] = jax.tree.flatten(vjp)
        given = jax.tree.leaves((p, extra))
        # A residual that is an argument is not kept again but passed by its place.
        places = [next((i for i, g in enumerate(given) if g is leaf), None) for leaf in leaves]
        known["places"] = places
        return y, [leaf for leaf, i in zip(leaves, places, strict=True) if i is None]

    def backward(p, kept, ct, extra):
        given, rest = jax.tree.leaves((p, extra)), iter(kept)
        leaves = [next(rest) if i is None else given[i] for i in known["places"]]
        dp, dx = jax.tree.unflatten(known["tree"], leaves)(ct)
        return dx, dp

    return _with_parts(forward, backward)


def _with_parts(forward: Callable, backward: Callable) -> Pieces:
    def split(p, kept, ct, extra):
        closed, shape = jax.make_jaxpr(backward, return_shape=True)(p, kept, ct, extra)
        n_dx = len(jax.tree.leaves(shape[0]))
        n_ct = len(jax.tree.leaves((p, kept)))
        return _cut(closed, n_dx, n_ct), jax.tree.structure(shape[0]), jax.tree.structure(shape[1])

    known: dict[str, Any] = {}

    def input_part(p, kept, ct, extra):
        (first, known["second"]), dx_tree, known["dp_tree"] = split(p, kept, ct, extra)
        out = jaxpr_as_fun(first)(*jax.tree.leaves((p, kept, ct, extra)))
        n = dx_tree.num_leaves
        return jax.tree.unflatten(dx_tree, out[:n]), list(out[n:])

    def weight_part(p, kept, deferred, extra):
        args = (*jax.tree.leaves((p, kept)), *jax.tree.leaves(extra), *deferred)
        return jax.tree.unflatten(known["dp_tree"], jaxpr_as_fun(known["second"])(*args))

    return Pieces(forward, backward, input_part, weight_part)


def _cut(closed: ClosedJaxpr, n_first: int, ct_place: int) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Returns (what computes the first n_first outputs, then what is handed on; the rest).

    The second takes the first's arguments without the cotangent at ct_place, then what is handed
    on: every value that its equations read and the first part knows, the cotangent included.
    """
    jaxpr = closed.jaxpr
    needed = {v for v in jaxpr.outvars[:n_first] if not isinstance(v, Literal)}
    first, later = [], []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            first.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
        else:
            later.append(eqn)
    wanted = {v for v in jaxpr.outvars[n_first:] if not isinstance(v, Literal)}
    second = []
    for eqn in later:  # last equation first
        if wanted.intersection(eqn.outvars):
            second.append(eqn)
            wanted.update(v for v in eqn.invars if not isinstance(v, Literal))
    own = [v for i, v in enumerate(jaxpr.invars) if i != ct_place]
    known = [jaxpr.invars[ct_place], *(v for eqn in reversed(first) for v in eqn.outvars)]
    handed = [v for v in known if v in wanted]
    parts = []
    for invars, outvars, eqns in (
        (jaxpr.invars, [*jaxpr.outvars[:n_first], *handed], first[::-1]),
        ([*own, *handed], jaxpr.outvars[n_first:], second[::-1]),
    ):
        effects = set().union(*(eqn.effects for eqn in eqns)) if eqns else set()
        part = Jaxpr(jaxpr.constvars, invars, outvars, eqns, effects)
        parts.append(ClosedJaxpr(part, closed.consts))
    return parts[0], parts[1]
