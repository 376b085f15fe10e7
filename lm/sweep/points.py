"""The points of a sweep: each a complete config, a group and an id."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lm import budget
from lm.config import Config, DataConfig
from lm.errors import BadInput
from lm.train.setup import load_data, with_vocabulary
from lm.train.workdir import run_id


@dataclass(frozen=True)
class Point:
    """One run of a sweep. group is the FLOP budget, the rung where the budget is another, or the
    variant of an ablation."""

    run_id: str
    group: str
    config: Config
    swept: Mapping[str, Any]  # the fields this point sets, by dotted name

    @property
    def horizon(self) -> budget.Horizon:
        return budget.horizon(self.config)


def make_points(
    configs: Iterable[tuple[Mapping[str, Any], Config]],
    rung: str = "r",
    groups: Sequence[str] | None = None,
) -> list[Point]:
    """Returns the points in order, of these groups if they are given; vocabularies come from the
    data, read once for each setting."""
    vocabularies: dict[tuple[DataConfig, int, int], int] = {}
    points: list[Point] = []
    for i, (swept, c) in enumerate(configs):
        key = (c.data, c.length, c.seed)
        if key not in vocabularies:
            vocabularies[key] = load_data(c)[1].vocab_size
        c = with_vocabulary(c, vocabularies[key])
        if groups is not None:
            group, name = groups[i], f"{groups[i]}-s{c.seed}"
        elif c.train.flops is not None:
            group = f"{c.train.flops:.4g}".replace("e+", "e")
            name = f"{group}-n{budget.n_params(c.model)}"
        else:
            group = name = f"{rung}{i:03d}"
        points.append(Point(f"{name}-{run_id(c)}", group, c, {k: _value(c, k) for k in swept}))
    seen: dict[str, int] = {}
    for i, p in enumerate(points):
        # Two variants of an ablation may be one config; a name by the point's number hides it.
        first = seen.setdefault(run_id(p.config) if groups is None else p.run_id, i)
        if first != i:
            raise BadInput(
                f"points {first} and {i} of the sweep are the same run (a held-out run is the "
                "last point): remove one, or give them different seeds"
            )
    return points


def _value(c: Config, key: str) -> Any:
    """Returns a field by its dotted name: what a run used, whatever was said on top of the file."""
    return reduce(getattr, key.split("."), c)
