"""One look for every figure: colours, axes with units, ticks a reader can read, PNG and SVG files.

The colours are those of Okabe and Ito (2008) for kinds and of viridis for amounts: both hold for
colour-blind readers and in grey.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lm.whole_file import write as write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE = "#222222", "#767676", "#d9d9d9"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9",
)  # fmt: skip
KINDS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)

RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.6,
    "text.color": INK,
    "figure.facecolor": "white",
    "svg.fonttype": "path",  # the same letters on every machine
    "svg.hashsalt": "isoflop",  # the same ids every time
}

# What the numbers of each role are called on an axis.
LABELS = {
    "n": "parameters N",
    "d": "training tokens D",
    "flops": "training FLOPs C",
    "loss": "loss (nats per token)",
}


def figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (5.6, 4.1), **more: Any
) -> tuple["Figure", Any]:
    """A Figure of rows x columns panels and its axes: one Axes, or an array (rows, columns)."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(RC):
        made = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(made)
        axes = made.subplots(rows, columns, squeeze=False, **more)
    return made, axes[0, 0] if rows == columns == 1 else axes


def styled(draw: Callable[..., "Figure"]) -> Callable[..., "Figure"]:
    """The drawing function, run under the one look."""
    from functools import wraps

    @wraps(draw)
    def under_the_look(*args: Any, **kwargs: Any) -> "Figure":
        from matplotlib import rc_context

        with rc_context(RC):
            return draw(*args, **kwargs)

    return under_the_look


def amount_colours(values: Sequence[float] | np.ndarray) -> list[tuple[float, ...]]:
    """A viridis colour for each positive amount by its logarithm; the palest end is left out."""
    from matplotlib import colormaps

    logs = np.log(np.asarray(values, dtype=np.float64))
    span = np.ptp(logs)
    share = (logs - logs.min()) / span if span > 0 else np.zeros_like(logs)
    return [tuple(colormaps["viridis"](0.88 * s)) for s in share]


def amount_bar(drawn: "Figure", axes: Any, values: np.ndarray, label: str, form: Callable) -> None:
    """A colour bar that explains `amount_colours` of the same values."""
    from matplotlib import cm, colormaps
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = float(np.min(values)), float(np.max(values))
    if not high > low:
        low, high = low / 1.5, high * 1.5
    shades = ListedColormap(colormaps["viridis"](np.linspace(0, 0.88, 256)))
    mappable = cm.ScalarMappable(LogNorm(low, high), shades)
    bar = drawn.colorbar(mappable, ax=axes, pad=0.02, aspect=28)
    bar.ax.yaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: form(v)))
    bar.set_label(label)
    bar.outline.set_visible(False)  # type: ignore[operator]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers within [low, high]: 1, 2, 5 or 1, 3 of each decade, or every few decades."""
    if high < 4 * low:  # too narrow for decades: even steps, as on a linear axis
        from matplotlib.ticker import MaxNLocator

        ticks = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(t) for t in ticks if low * 0.9999 <= t <= high * 1.0001]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
        inside = [t for t in ticks if low * 0.9999 <= t <= high * 1.0001]
        if len(inside) <= most:
            break
    every = math.ceil(len(inside) / most)
    return inside[::every]


def log_axis(axes: "Axes", which: str, form: Callable[[float], str], most: int = 7) -> None:
    """Makes an axis ("x" or "y") logarithmic, its ticks at round numbers written by `form`.

    Call it after the data is drawn: the ticks are chosen within the limits as they are then.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    getattr(axes, f"set_{which}scale")("log")
    low, high = getattr(axes, f"get_{which}lim")()
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator(log_ticks(min(low, high), max(low, high), most)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: form(v)))


def count(x: float) -> str:
    """A count in words of three digits: 30k, 1.4T; powers of ten beyond."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size * 0.9995 <= abs(x) < size * 999.5:
            return f"{x / size:.3g}{letter}"
    return f"{x:.3g}" if 1e-2 <= abs(x) < 1e3 or x == 0 else power(x)


def power(x: float) -> str:
    """A number as matplotlib's mathtext: $10^{18}$, $3 x 10^{18}$."""
    front, _, exponent = f"{x:.2e}".partition("e")
    digits = f"{float(front):g}"
    return (
        f"$10^{{{int(exponent)}}}$"
        if digits == "1"
        else f"${digits}\\times 10^{{{int(exponent)}}}$"
    )


def plain(x: float) -> str:
    return f"{float(f'{x:.6g}'):g}"


def write(drawn: "Figure", folder: str | Path, name: str) -> list[Path]:
    """Writes NAME.png and NAME.svg into the folder, each whole; returns their paths.

    Raises CannotSave where the disk is full, BadInput where the folder cannot be written.
    """
    folder = Path(folder)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    document, picture = svg_text(drawn), io.BytesIO()
    drawn.savefig(picture, format="png", dpi=160)
    write_file(paths[1], document, "give another --out")
    write_file(paths[0], picture.getvalue(), "give another --out")
    return paths


def svg_text(drawn: "Figure") -> str:
    """The figure as a whole SVG document, the same text every time."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(RC):
        if drawn.get_layout_engine() is not None:
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")  # laid out once: later drawings keep the places
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "isoflop"})
    # Six decimals of a point are five too many, and half of the file.
    return re.sub(
        r' (?:d|x|y)="[^"]*"',
        lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found.group(0)),
        buffer.getvalue(),
    )


def svg_inline(document: str, prefix: str, label: str) -> tuple[float, str]:
    """The width in inches, and the document as an <svg> element to stand inside a page.

    It scales to the width it is given, its ids start with `prefix`, it names no address, and
    `label` says what it shows to those who cannot see it.
    """
    from html import escape

    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    opening, rest = body.split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', opening)
    assert box is not None, "matplotlib writes a viewBox"
    rest = re.sub(r'\bid="', f'id="{prefix}-', rest)
    rest = re.sub(r'xlink:href="#', f'href="#{prefix}-', rest)
    rest = re.sub(r"url\(#", f"url(#{prefix}-", rest)
    width = float(box.group(1).split()[2]) / 72
    return width, f'<svg {box.group(0)} role="img" aria-label="{escape(label)}">{rest.strip()}'
