"""What a search found, as a person reads it and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from launch.ranking import TIE, Ranked, preferred

MOST = 12  # meshes printed


def table(found: Sequence[Ranked], compiled: Mapping[int, dict[str, Any]]) -> str:
    """Returns a line for each of the best layouts: estimates, and what compiling said."""
    shown = list(enumerate(found))[:MOST]
    wide = max(len(r.candidate.choice.words()) for _, r in shown)
    head = f"{'layout':<{wide}}  {'step':>8} {'MFU':>6} {'memory':>10}  {'bound by':<14}"
    lines = [f"{head}  compiled: step, MFU, memory" if compiled else head.rstrip()]
    for i, r in shown:
        mfu, p = r.estimate.meaning["mfu"], r.estimate.prediction
        line = (
            f"{r.candidate.choice.words():<{wide}}  {_seconds(p.step):>8} {_share(mfu):>6} "
            f"{_gib(r.estimate.peak):>10}  {p.bound:<14}"
        )
        lines.append(f"{line}  {_compiled(compiled.get(i))}".rstrip())
    if len(found) > MOST:
        lines.append(f"and {len(found) - MOST} slower meshes")
    return "\n".join(lines)


def best(found: Sequence[Ranked], compiled: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Returns the choice, as plain values: of the compiled layouts if any passed, else of all."""
    passed = {i: said for i, said in compiled.items() if "error" not in said}
    if passed:
        step = lambda i: passed[i]["predicted"]["step_seconds"]
        memory = lambda i: passed[i]["bytes_per_device"]["peak"]
        i, n_tied = preferred(list(passed), step, memory)
        seconds, how = step(i), "compiled"
    else:
        ranked, n_tied = preferred(found)
        i, seconds, how = found.index(ranked), ranked.step, "estimated, not compiled"
    choice = found[i].candidate.choice
    return {
        "layout": choice.words(),
        "settings": choice.settings(),
        "flags": choice.line(),
        "step_seconds": seconds,
        "step_is": how,
        "tied": n_tied,
    }


def sentence(chosen: Mapping[str, Any]) -> str:
    """Returns the choice in words, and as flags on a line of their own."""
    lines = [
        f"best: {chosen['layout']}, {_seconds(chosen['step_seconds'])} a step at least "
        f"({chosen['step_is']})"
    ]
    if chosen["tied"] > 1:
        lines.append(
            f"{chosen['tied']} layouts are within {TIE:.0%} of the fastest: this one needs least "
            "memory"
        )
    return "\n".join([*lines, chosen["flags"]])


def _compiled(said: Mapping[str, Any] | None) -> str:
    if said is None:
        return ""
    if "error" in said:
        return "failed"
    p = said["predicted"]
    peak = said["bytes_per_device"]["peak"]
    return f"{_seconds(p['step_seconds'])}, {_share(p['mfu'])}, {_gib(peak)}"


def _seconds(s: float) -> str:
    return f"{s:.3g} s" if s >= 0.1 else f"{s * 1e3:.3g} ms"


def _share(mfu: float | None) -> str:
    return "" if mfu is None else f"{mfu:.1%}"


def _gib(n: float) -> str:
    return f"{n / 2**30:,.2f} GiB"
