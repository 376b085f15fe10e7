"""Drawn schedules: the text can be read back, and the chart is to scale."""

import pytest
from matplotlib.patches import Rectangle

from lm.errors import BadInput
from lm.pipeline.drawing import chart, draw, picture
from lm.pipeline.schedule import COSTS, Work, idle_share, makespan
from lm.pipeline.schedules import SCHEDULES, make_schedule

KINDS = [(name, 2 if name == "interleaved" else 1) for name in SCHEDULES]


@pytest.mark.parametrize("name, repeats", KINDS)
def test_a_drawn_schedule_can_be_read_back(name, repeats):
    schedule = make_schedule(name, 3, 11, repeats)
    title, ticks, *rows = draw(schedule).splitlines()
    assert f"({idle_share(schedule)})" in title
    assert ticks.split() == ["tick", *map(str, range(schedule.ticks))]
    start = ticks.index("0")
    read = set()
    for row in rows:
        stage = int(row[:start].removeprefix("stage"))
        cells = row[start:].split()
        # Aligned: every cell starts where the number of its tick does.
        assert all(row[ticks.index(f" {t} ") + 1] == c[0] for t, c in enumerate(cells[:-1]))
        for tick, cell in enumerate(cells):
            if cell != ".":
                microbatch, _, chunk = cell[1:].partition("/")
                what = next(w for w in COSTS if w[0].upper() == cell[0])
                read.add(Work(tick, stage, what, int(microbatch), int(chunk or 0)))
    assert read == set(schedule.works)


def test_a_chart_has_a_box_of_the_length_of_every_work():
    schedules = [make_schedule(name, 3, 4, r) for name, r in KINDS]
    panels = chart(schedules).axes
    assert len(panels) == len(schedules)
    for axes, schedule in zip(panels, schedules, strict=True):
        ground, *boxes = (p.get_bbox() for p in axes.patches if isinstance(p, Rectangle))
        span = float(makespan(schedule))
        assert (ground.width, ground.height) == (span, 3)
        assert len(boxes) == len(axes.texts) == len(schedule.works)
        assert max(box.x1 for box in boxes) == pytest.approx(span)
        area = sum(box.width * box.height for box in boxes)
        assert 1 - area / (3 * span) == pytest.approx(float(idle_share(schedule)))
        for stage in range(3):
            row = sorted((box.x0, box.x1) for box in boxes if box.y0 == stage)
            assert all(a[1] <= b[0] + 1e-9 for a, b in zip(row, row[1:], strict=False))
        assert axes.get_xlim() == panels[0].get_xlim()
    colours = {c.get_facecolor() for axes in panels for c in axes.patches}
    assert len(colours) == 1 + 4 + 2  # idle, the kinds, and two paler ones for earlier chunks


def test_a_picture_is_a_png_or_one_sentence(tmp_path):
    schedules = [make_schedule("1f1b", 2, 3)]
    picture(schedules, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match="cannot be written .*another path"):
        picture(schedules, tmp_path / "absent" / "one.png")
