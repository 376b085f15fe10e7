"""Throughput of a chip against the number of chips, estimated: rows of a table, and their chart."""

import dataclasses
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launch.estimate import Estimate, Estimator
from launch.layouts import Choice, Layouts, choices
from launch.paper import on_paper, topology_of
from launch.topology import read_name
from lm import chips
from lm.config import Config, to_dict
from lm.errors import BadInput
from lm.laws.figures import style
from lm.layout import AXES, PIPE
from lm.progress import Progress, say
from lm.whole_file import write as write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = [2**i for i in range(4, 13)]  # 16 to 4096 chips
MODES = {"weak": "batch grows with the chips", "strong": "batch stays"}


class Family(NamedTuple):
    """Layouts that a line is made of; data is what is left of the devices."""

    name: str
    model: int
    pipe: int
    schedule: str | None


FAMILIES = (
    Family("data, fully sharded", 1, 1, None),
    Family("data x model 4", 4, 1, None),
    Family("data x pipe 4, 1F1B", 1, 4, "1f1b"),
)


def curves(
    c: Config, chip: str, rows_per_chip: int, reports: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Returns a row for each mode, family and size at which some layout of the family fits.

    reports: contents of compile.json; one that is such a point fills its compiled_* columns.
    """
    batches = {"weak": lambda n: rows_per_chip * n, "strong": lambda n: c.train.batch_size}
    sizes = _priced(_chip(chip))
    asked = [(mode, family, n) for mode in MODES for family in FAMILIES for n in sizes]
    progress = Progress("estimating", len(asked), unit="point")
    rows: list[dict[str, Any]] = []
    for i, (mode, family, n) in enumerate(asked):
        batch = batches[mode](n)
        train = dataclasses.replace(c.train, batch_size=batch, batch_growth=())
        found = _fastest(dataclasses.replace(c, train=train), family, topology_of(_chip(chip), n))
        if found:
            rows.append({"mode": mode, "family": family.name, "chips": n, "batch_size": batch}
                        | _row(*found, n))  # fmt: skip
        progress.update(i + 1)
    progress.close()
    if not rows:
        raise BadInput(f"no layout of these kinds fits {sizes[0]} to {sizes[-1]} chips of {chip}")
    for row in rows:
        line = [r for r in rows if (r["mode"], r["family"]) == (row["mode"], row["family"])]
        per_chip = line[0]["tokens_per_second_per_chip"]
        row["efficiency"] = row["tokens_per_second_per_chip"] / per_chip
        row |= {f"compiled_{what}": None for what in ("step_seconds", *PANELS)}
        for report in reports:
            if _is_point(report, row, chip):
                found = report["predicted"]
                row["compiled_step_seconds"] = found["step_seconds"]
                row["compiled_mfu"] = found["mfu"]
                row["compiled_efficiency"] = (
                    found["tokens_per_second"] / report["n_chips"] / per_chip
                )
    return rows


def _priced(chip: chips.Chip) -> list[int]:
    """Returns the sizes whose networks have a published bandwidth; BadInput where none has."""
    names = [(n, topology_of(chip, n)) for n in SIZES]
    known = [n for n, name in names if name and (chip.slow_bandwidth or read_name(name)[2] == 1)]
    unknown = f"the bandwidth of {chip.name} between slices is not published"
    if not known:
        raise BadInput(f"{unknown}, which {SIZES[0]} chips need: give another --chip")
    if len(known) < len(SIZES):
        say(f"{unknown}: lines end at {known[-1]} chips")
    return known


def _chip(name: str) -> chips.Chip:
    chip = chips.named(name)
    assert chip is not None
    return chip


def _fastest(
    c: Config, family: Family, topology: str | None
) -> tuple[str, Choice, Estimate] | None:
    """Returns the family's fastest layout on a machine, computing again as the config says."""
    if topology is None:
        return None
    machine = on_paper(topology)
    data, over = divmod(len(machine.devices), family.model * family.pipe)
    if over or not data:
        return None
    recompute = c.model.remat if family.pipe == 1 else c.pipeline.recompute
    layouts, estimate = Layouts(to_dict(c), machine), Estimator(machine)
    best = None
    for choice in choices(c, (data, family.model, family.pipe, True)):
        if (choice.schedule, choice.recompute) != (family.schedule, recompute):
            continue
        candidate = layouts.candidate(choice)
        found = estimate(candidate) if candidate else None
        if found and found.fits and (not best or found.prediction.step < best[2].prediction.step):
            best = topology, choice, found
    return best


def _row(topology: str, choice: Choice, e: Estimate, n: int) -> dict[str, Any]:
    tokens = e.meaning["tokens_per_second"]
    assert tokens is not None
    return {
        "topology": topology,
        **dict(zip(AXES, choice.mesh[:3], strict=True)),
        "microbatches": choice.microbatches,
        "step_seconds": e.prediction.step,
        "bound": e.prediction.bound,
        "exposed_seconds": e.prediction.exposed,
        "idle": e.idle,
        "peak_bytes": e.peak,
        "mfu": e.meaning["mfu"],
        "tokens_per_second_per_chip": tokens / n,
    }


def _is_point(report: dict[str, Any], row: dict[str, Any], chip: str) -> bool:
    """Whether a compiled program is the point of a line, whatever its micro-batches."""
    mesh, c = report["mesh"], report["config"]
    return (
        report["chip"] == chip
        and report["n_chips"] == row["chips"]
        and report["batch_size"] == row["batch_size"]
        and all(mesh[axis] == row[axis] for axis in AXES)
        and report["fully_sharded"]
        and (row[PIPE] == 1 or c["pipeline"]["schedule"] == "1f1b")
    )


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the efficiencies as a table: a line for each mode and family, a column a size."""
    wide = max(len(f"{mode}  {family.name}") for mode in MODES for family in FAMILIES)
    lines = [f"{'chips':<{wide}}" + "".join(f"{n:>7}" for n in SIZES)]
    for mode, family, line in _lines(rows):
        by_size = {row["chips"]: f"{row['efficiency']:.3f}" for row in line}
        cells = "".join(f"{by_size.get(n, '-'):>7}" for n in SIZES)
        lines.append(f"{f'{mode}  {family}':<{wide}}{cells}")
    for row in rows:
        if row["compiled_efficiency"]:
            lines.append(
                f"compiled: {row['mode']}, {row['family']}, {row['chips']} chips: "
                f"{row['compiled_efficiency']:.3f}, estimated {row['efficiency']:.3f}"
            )
    return "\n".join(lines)


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    for mode in MODES:
        for family in FAMILIES:
            line = [r for r in rows if r["mode"] == mode and r["family"] == family.name]
            if line:
                yield mode, family.name, line


PANELS = {"efficiency": "tokens/s of a chip, smallest machine = 1", "mfu": "MFU"}


@style.styled
def figure(rows: Sequence[dict[str, Any]], chip: str) -> "Figure":
    """Returns the chart: efficiency above MFU, weak scaling left, strong right."""
    made, axes = style.figure(2, 2, (9.6, 7.0), sharex=True, sharey="row")
    colours = {family.name: style.KINDS[i] for i, family in enumerate(FAMILIES)}
    for panels, mode in zip(axes.T, MODES, strict=True):
        for panel, value in zip(panels, PANELS, strict=True):
            for _, family, line in (found for found in _lines(rows) if found[0] == mode):
                n, y = [r["chips"] for r in line], [r[value] for r in line]
                panel.plot(n, y, "o-", ms=3.5, color=colours[family], label=family)
                compiled = [(r["chips"], r[f"compiled_{value}"]) for r in line]
                compiled = [(x, y) for x, y in compiled if y is not None]
                for point in compiled:
                    panel.plot(*point, "D", ms=8, mfc="none", mew=1.4, color=colours[family])
            most = max(r[value] or 0 for r in rows)
            panel.set_ylim(0, max(1.1 * most, 0.1))
        batches = {row["batch_size"] for row in rows if row["mode"] == mode}
        how = f"{max(batches):,} sequences a step" if len(batches) == 1 else MODES[mode]
        panels[0].set_title(f"{mode.capitalize()} scaling: {how}")
        panels[-1].set_xlabel(f"{chip} chips")
    for panel, label in zip(axes[:, 0], PANELS.values(), strict=True):
        panel.set_ylabel(label)
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes[0, 0].set_xlim(SIZES[0] / 1.2, SIZES[-1] * 1.2)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if any(row["compiled_mfu"] for row in rows):
        handles += axes[0, 0].plot([], [], "D", ms=8, mfc="none", mew=1.4, color=style.GREY)
        labels.append("compiled program")
    made.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return made


def chart(rows: Sequence[dict[str, Any]], chip: str, path: Path) -> None:
    """Writes the chart as a PNG, whole; raises as lm/whole_file.py does."""
    picture = io.BytesIO()
    figure(rows, chip).savefig(picture, dpi=160, format="png")
    write_file(path, picture.getvalue(), "choose another --out")
