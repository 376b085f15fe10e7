"""A command's module in this process, with no other command's flags: two name theirs alike."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from absl import flags

SHARED = "experiments.config_source"


def _taken() -> list[tuple[str, Any]]:
    """Takes the flags of commands back and returns them with their modules."""
    found = [
        (module, flag)
        for module, defined in flags.FLAGS.flags_by_module_dict().items()
        if module.startswith("experiments.") and module != SHARED
        for flag in list(defined)
    ]
    for _, flag in found:
        delattr(flags.FLAGS, flag.name)
    return found


@contextlib.contextmanager
def fresh(name: str) -> Iterator[Any]:
    """A context with experiments.<name>, imported anew; the flags are as before after it."""
    before, module = _taken(), sys.modules.pop(f"experiments.{name}", None)
    try:
        yield importlib.import_module(f"experiments.{name}")
    finally:
        _taken()
        sys.modules.pop(f"experiments.{name}", None)
        if module is not None:
            sys.modules[f"experiments.{name}"] = module
        for owner, flag in before:
            flags.FLAGS[flag.name] = flag
            flags.FLAGS.register_flag_by_module(owner, flag)
