"""Schedules drawn for people: as text, a column a tick, and as a PNG, to the scale of time.

from lm.pipeline.drawing import draw, picture
from lm.pipeline.schedules import make_schedule
print(draw(make_schedule("1f1b", stages=4, microbatches=8)))
picture([make_schedule(name, 4, 8) for name in ("gpipe", "1f1b")], "schedules.png")
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from lm.errors import BadInput
from lm.pipeline.schedule import (
    COSTS,
    Schedule,
    Work,
    high_water,
    idle_share,
    makespan,
    tick_costs,
)
from lm.whole_file import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, IDLE, PALEST = "#222222", "#e9e9e9", 0.55
# Of Okabe and Ito (2008), paler the earlier the chunk; and of the letters on them.
COLOURS = {
    "forward": ("#0072B2", "white"),
    "backward": ("#E69F00", INK),
    "input": ("#D55E00", "white"),
    "weight": ("#009E73", "white"),
}
TITLES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved",
    "zero_bubble": "Zero-bubble",
}
PARTS = {"input": "backward, input part", "weight": "backward, weight part"}
INCHES_WIDE, INCHES_A_STAGE = 11.0, 0.27


def draw(schedule: Schedule) -> str:
    """Returns a row for every stage, a column for every tick, and the figures in the first line.

    F, B, I, W are forward, whole backward, its input part and its weight part; the number is of the
    micro-batch, and where stages hold several chunks, the one after the slash is of the chunk.
    """
    cells = [["."] * schedule.ticks for _ in range(schedule.stages)]
    for work in schedule.works:
        cells[work.stage][work.tick] = _label(work, schedule.repeats)
    rows = [
        ["tick", *map(str, range(schedule.ticks))],
        *([f"stage {s}", *row] for s, row in enumerate(cells)),
    ]
    first = max(len(row[0]) for row in rows)
    wide = max(len(cell) for row in rows for cell in row[1:])
    lines = [f"{row[0]:<{first}}  " + " ".join(f"{c:<{wide}}" for c in row[1:]) for row in rows]
    return "\n".join([_title(schedule), *(line.rstrip() for line in lines)])


def chart(schedules: Sequence[Schedule]) -> "Figure":
    """Returns the schedules as a matplotlib Figure, one under the other on one scale of time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    heights = [schedule.stages * INCHES_A_STAGE for schedule in schedules]
    tall = sum(heights) + 0.62 * len(heights) + 0.75
    figure = Figure(figsize=(INCHES_WIDE, tall), layout=ConstrainedLayoutEngine(h_pad=0.09))
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(schedules), 1, squeeze=False, height_ratios=heights)[:, 0]
    longest = max(makespan(schedule) for schedule in schedules)
    for axes, schedule in zip(panels, schedules, strict=True):
        _panel(axes, schedule, longest)
    panels[-1].set_xlabel("time, in forwards of a stage", fontsize=9)
    seen = {work.what for schedule in schedules for work in schedule.works}
    keys = [Patch(color=COLOURS[w][0], label=PARTS.get(w, w)) for w in COSTS if w in seen]
    keys.append(Patch(color=IDLE, label="idle"))
    if any(schedule.repeats > 1 for schedule in schedules):
        keys.append(Patch(color="none", label="(paler: an earlier chunk of the stage)"))
    figure.legend(
        handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9
    )
    return figure


def picture(schedules: Sequence[Schedule], path: str | Path) -> None:
    """Writes the chart of the schedules as a PNG; BadInput where the file cannot be written."""
    try:
        with replacing(Path(path)) as temporary:
            chart(schedules).savefig(temporary, dpi=160, format="png")
    except OSError as e:
        raise BadInput(f"{path} cannot be written ({e.strerror}): give another path") from e


def _panel(axes: "Axes", schedule: Schedule, longest: Fraction) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    starts = [Fraction(), *accumulate(tick_costs(schedule))]
    axes.add_patch(Rectangle((0, 0), float(starts[-1]), schedule.stages, color=IDLE, lw=0))
    # One size of number for all, that of the widest number in the narrowest box.
    shortest = min(COSTS[work.what] for work in schedule.works) / schedule.repeats
    points = 72 * (INCHES_WIDE - 0.8) / float(longest) * shortest
    size = min(8.0, points / (0.8 * len(str(schedule.microbatches - 1))))
    for work in schedule.works:
        base, ink = COLOURS[work.what]
        pale = PALEST * (schedule.repeats - 1 - work.chunk) / max(schedule.repeats - 1, 1)
        colour = tuple(c + (1 - c) * pale for c in to_rgb(base))
        ink = INK if pale > 0.3 else ink
        # A tick may take longer than what is done in it: the stage waits for the others.
        width = float(Fraction(COSTS[work.what], schedule.repeats))
        left = float(starts[work.tick])
        axes.add_patch(
            Rectangle((left, work.stage), width, 1, facecolor=colour, edgecolor="white", lw=0.7)
        )
        if size >= 4:
            middle = (left + width / 2, work.stage + 0.53)
            axes.text(
                *middle, str(work.microbatch), color=ink, fontsize=size, ha="center", va="center"
            )
    axes.set_xlim(0, float(longest))
    axes.set_ylim(schedule.stages, 0)
    axes.set_yticks([s + 0.5 for s in range(schedule.stages)])
    axes.set_yticklabels([f"stage {s}" for s in range(schedule.stages)], fontsize=8)
    axes.tick_params(length=0, labelsize=8)
    axes.set_title(_title(schedule), loc="left", fontsize=9.5, fontweight="bold", pad=4)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _title(schedule: Schedule) -> str:
    """The name, sizes and figures of a schedule in a line."""
    name = TITLES.get(schedule.name, schedule.name)
    if schedule.repeats > 1:
        name += f" by {schedule.repeats}"
    idle = idle_share(schedule)
    share = f"{float(idle):.1%} ({idle})" if idle else "0"
    plural = "" if schedule.microbatches == 1 else "es"
    return (
        f"{name}: {schedule.microbatches} micro-batch{plural}, "
        f"time {float(makespan(schedule)):g}, idle {share}, "
        f"{'chunk ' if schedule.repeats > 1 else ''}activations held at most: "
        f"{', '.join(map(str, high_water(schedule)))}"
    )


def _label(work: Work, repeats: int) -> str:
    chunk = f"/{work.chunk}" if repeats > 1 else ""
    return f"{work.what[0].upper()}{work.microbatch}{chunk}"
