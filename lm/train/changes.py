"""Resume rules: which settings may differ from those a work folder was made with.

A run is one experiment. What decides its result may not change on the way: the result would be that
of no config. What decides only its logs and files may, and so may what decides how its sums are
laid out over devices: the mathematics is the same, the last bits are not.
"""

from fnmatch import fnmatch

SAME_BITS = ("log.*", "checkpoint.*", "eval.every")
SAME_MATHEMATICS = (
    "mesh.*",
    "pipeline.schedule",
    "pipeline.microbatches",
    "pipeline.recompute",
    "train.accumulate",
    "model.attention",
    "model.scan_layers",
    "model.remat",
    "eval.batch_size",
)
# Where training began is part of the result.
NEVER = ("checkpoint.start_*",)


def may_change(field: str) -> bool:
    """Returns whether a run may go on with another value of a dotted field."""
    return not _among(field, NEVER) and _among(field, SAME_BITS + SAME_MATHEMATICS)


def told(field: str, then: object, now: object) -> str:
    """Returns a line for the log of a change that may be made."""
    note = "" if _among(field, SAME_BITS) else " (results agree to rounding, not always to the bit)"
    return f"going on with {field} {now!r} instead of {then!r}{note}"


def _among(field: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(field, pattern) for pattern in patterns)
