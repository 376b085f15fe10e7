"""How large the numbers of a config may be: what holds them decides, and what a machine can do."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from lm.config_fields import Config
from lm.errors import BadInput

MOST = 2**31 - 1  # devices count in int32
WIDE = 2**53  # the host counts in int64 and, where counts meet FLOPs, in float64
WIDE_FIELDS = ("seed", "train.n_tokens", "train.batch_growth")
# Settings end in float32: above its largest number is infinity, below its smallest is 0.
LARGEST, SMALLEST = 3.4028234663852886e38, 1.1754943508222875e-38
# What costs a thread, a state of a table or an unrolled product each.
AT_MOST: dict[str, float] = {
    "data.workers": 1024,
    "data.markov_order": 16,
    "optim.muon_iterations": 100,
    "optim.spike_window": 2**20,
    "checkpoint.stall_seconds": 10**9,
}
UNROLLED_LAYERS = 1000  # more of them take hours to compile one by one


def check_numbers(c: Config) -> None:
    """Raises BadInput for a number that is not finite, or larger than its field may be."""
    for key, value in _numbers("", c):
        if isinstance(value, float):
            _check_float(key, value)
        whole = WIDE if key in WIDE_FIELDS else MOST
        limit = AT_MOST.get(key, LARGEST if isinstance(value, float) else whole)
        if abs(value) > limit:
            raise BadInput(f"{key} is {_told(value)}: it must be at most {limit:,}")
    m = c.model
    if m.n_layers > UNROLLED_LAYERS and not m.scan_layers and c.mesh.pipe == 1:
        raise BadInput(
            f"model.n_layers {m.n_layers} would be compiled one by one, for hours: set "
            "model.scan_layers=true"
        )


def _numbers(key: str, value: Any) -> Iterator[tuple[str, int | float]]:
    """Every number with the dotted name of its field; those in lists have the list's."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            name = f"{key}.{field.name}" if key else field.name
            yield from _numbers(name, getattr(value, field.name))
    elif isinstance(value, tuple):
        for entry in value:
            yield from _numbers(key, entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


def _check_float(key: str, value: float) -> None:
    if not abs(value) <= LARGEST:  # nan too
        raise BadInput(
            f"{key} is {value}: it must be finite, {LARGEST:.4g} at most, which is what float32 "
            "holds"
        )
    if 0 < abs(value) < SMALLEST:
        raise BadInput(
            f"{key} is {value}: it must be 0 or {SMALLEST:.4g} at least, float32 makes it 0"
        )


def _told(value: int | float) -> str:
    return f"{value:,}" if abs(value) < 10**20 else "larger than 1e20"
