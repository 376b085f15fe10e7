"""What the optimizer does with each parameter: its rule, its learning rate, whether it decays.

Everything comes from the parameter table, so every parameter is covered by construction, and from
patterns over paths such as blocks/ffn/*. A pattern that names nothing is an error.
"""

import math
from fnmatch import fnmatchcase
from typing import NamedTuple

from lm.config import OptimConfig
from lm.errors import BadInput
from lm.model.spec import ParamSpec, Table, flatten


class Group(NamedTuple):
    """How one parameter is updated."""

    rule: str  # muon or adamw where the optimizer is Muon, else the optimizer's name
    factor: float  # of the schedule's learning rate
    decayed: bool


def groups(o: OptimConfig, table: Table) -> dict[str, Group]:
    """Returns {path: group} of every parameter; raises BadInput for a pattern that names none.

    Of optim.learning_rate_factors the first pattern that fits a path counts.
    """
    rows = flatten(table)
    patterns = {"optim.no_decay": o.no_decay}
    patterns["optim.learning_rate_factors"] = tuple(p for p, _ in o.learning_rate_factors)
    for field, named in patterns.items():
        for pattern in named:
            if not any(fnmatchcase(path, pattern) for path in rows):
                raise BadInput(
                    f"{field}: {pattern!r} names no parameter: the paths are {', '.join(rows)}"
                )

    def group(path: str, row: ParamSpec) -> Group:
        rule = o.optimizer
        if rule == "muon" and not row.hidden_matrix:
            rule = "adamw"
        fits = (f for p, f in o.learning_rate_factors if fnmatchcase(path, p))
        kept = any(fnmatchcase(path, p) for p in o.no_decay)
        return Group(rule, float(next(fits, 1.0)), row.decayed and not kept)

    return {path: group(path, row) for path, row in rows.items()}


def told(o: OptimConfig, table: Table) -> str:
    """Returns what weight decay acts on, in a line."""
    rows, found = flatten(table), groups(o, table)
    decayed = sum(math.prod(rows[path].shape) for path, g in found.items() if g.decayed)
    total = sum(math.prod(row.shape) for row in rows.values())
    return f"weight decay {o.weight_decay:g} on {decayed:,} of {total:,} values"


def explain(o: OptimConfig, table: Table) -> str:
    """Returns a line for each parameter: its rule, peak learning rate and weight decay."""
    rows, found = flatten(table), groups(o, table)
    wide = max(map(len, rows))
    lines = [f"{'parameter':{wide}}  {'shape':>20}  rule       peak rate  weight decay"]
    for path, g in found.items():
        peak = g.factor * (o.muon_learning_rate if g.rule == "muon" else o.learning_rate)
        decay = f"{o.weight_decay:g}" if g.decayed else "none"
        shape = " x ".join(map(str, rows[path].shape))
        lines.append(f"{path:{wide}}  {shape:>20}  {g.rule:9}  {peak:9.3g}  {decay:>12}")
    lines.append(f"{told(o, table)}, by the rate of the schedule times")
    lines.append(f"optim.learning_rate {o.learning_rate:g} and their own factor")
    return "\n".join(lines)
