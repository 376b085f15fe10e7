"""The best layouts of a search compiled, each in a process of its own."""

from collections.abc import Sequence
from typing import Any

from launch.apart import apart
from launch.compiled import report
from launch.ranking import Ranked
from lm.config import to_dict
from lm.errors import BadInput, CannotFinish
from lm.progress import Progress, say


def compile_best(found: Sequence[Ranked], topology: str, wanted: int) -> dict[int, dict[str, Any]]:
    """Returns what compiling said of layouts, by their place: `wanted` that pass, or an error.

    What the compiler refuses (out of memory, its own failures) is passed over, at most as often as
    layouts are wanted.
    """
    if not wanted:
        return {}
    said: dict[int, dict[str, Any]] = {}
    passed = 0
    progress = Progress("compiling", min(wanted, len(found)), unit="layout")
    for i, ranked in enumerate(found[: 2 * wanted]):
        words = ranked.candidate.choice.words()
        say(f"compiling {words} ...")
        try:
            said[i] = apart(words, report, to_dict(ranked.candidate.config), topology)
            passed += 1
        except (BadInput, CannotFinish) as e:
            said[i] = {"error": str(e)}
            say(f"{words}: {e}")
        progress.update(passed)
        if passed == wanted:
            break
    progress.close()
    if not passed:
        raise CannotFinish(
            f"the compiler passed none of {len(said)} layouts: {said[0]['error']}; --compile=0 "
            "prints the estimates alone"
        )
    return said
