"""A plan from N*(C) and D*(C) alone: what the IsoFLOP and envelope methods leave behind.

Such a fit has no surface. It answers a budget; the loss there is that of the parametric fit which
law.json holds beside it, where it holds one.
"""

import math
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.allocate import SIX_ND
from lm.laws.law_file import KnownLaw
from lm.laws.plan import Question, banded, beyond_the_table
from lm.laws.shape import Family
from lm.laws.surface import surface


def frontier_plan(
    known: KnownLaw, q: Question, family: Family, convention: str, command: str = ""
) -> dict[str, Any]:
    """Returns the content of plan.json for a budget; raises BadInput for any other question."""
    q.check()
    if q.flops is None or q.served or q.unique is not None:
        raise BadInput(
            f"{known.name} holds only N* and D* of a budget (method {known.method}), so it answers "
            "--flops and nothing else: fit with --method=parametric for the rest"
        )
    assert known.frontier is not None
    family = Family(family.base, family.length, known.n_counts)
    log_c, samples = math.log(q.flops), known.samples

    def quantity(f) -> dict[str, Any]:
        point = np.atleast_1d(f(known.frontier))
        return banded(point, None if samples is None else f(samples), "", [])

    def n_star(p):
        return p["N_0"] * np.exp(p["a"] * log_c)

    def d_star(p):
        return p["D_0"] * np.exp(p["b"] * log_c)

    def loss_at(n: float, d: float) -> dict[str, Any]:
        value = float(surface(known.law, known.params).loss(n, d)[0, 0]) if known.params else None
        return {"value": value, "interval_80": None, "interval_95": None}

    n, d = quantity(n_star), quantity(d_star)
    warnings = list(known.warnings)
    if known.params:
        warnings.append("the loss is that of the parametric fit beside, without an interval")
    else:
        warnings.append("no loss: the fit holds no surface; fit with --method=parametric for one")
    shape = None
    try:
        shape = family.nearest(n["value"])
    except BadInput as e:
        warnings.append(f"no shape: {e}")
    if shape is not None:
        counted = SIX_ND if convention == "6nd" else family
        size = float(shape[family.n_counts])
        train = 6 * size if counted is SIX_ND else shape["flops_per_token"]
        tokens = q.flops / train
        shape |= {
            "n_tokens": round(tokens),
            "flops": shape["flops_per_token"] * tokens,
            "flops_6nd": 6 * shape["n_params"] * tokens,
            "loss": loss_at(size, tokens),
        }
    warnings += beyond_the_table(known, q.flops)
    return {
        "law": known.law,
        "form": known.law,
        "method": known.method,
        "constants": known.frontier,
        "source": known.source,
        "n_counts": known.n_counts,
        "convention": convention,
        "flops": quantity(lambda p: q.flops + 0.0 * p["a"]),
        "n": n,
        "d": d,
        "tokens_per_param": quantity(lambda p: d_star(p) / n_star(p)),
        "loss": loss_at(n["value"], d["value"]),
        "given": q.given,
        "exponents": {k: quantity(lambda p, k=k: p[k]) for k in ("a", "b")},
        "shape": shape,
        "warnings": warnings,
        "command": command,
    }
