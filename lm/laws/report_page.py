"""The page a report stands on: style, numbers in words, tables, one self-contained HTML document.

Every function takes plain values and returns HTML; text from outside passes through `text` and
nowhere else. The page asks for nothing: styles and the sorting of tables are in it.
"""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

STYLE = """
:root { --ink: #1c1f23; --soft: #5c6570; --line: #dfe3e8; --pale: #f5f7f9; --blue: #0b5c92;
  --warm: #9a5b00; --warm-pale: #fff6e5; --good: #00694c; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 74rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.05rem; margin: 0; color: var(--soft); font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--blue); } sup { line-height: 0; }
nav { margin: .3rem 0 1rem; font-size: .9rem; } nav a { margin-right: .9rem; }
.answer { font-size: 1.45rem; line-height: 1.35; font-weight: 650; margin: .7rem 0 .9rem;
  max-width: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr));
  gap: .7rem; margin: .8rem 0; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .65rem .8rem;
  background: var(--pale); }
.card b { display: block; font-size: 1.5rem; line-height: 1.25; }
.card span { display: block; font-size: .82rem; color: var(--soft); }
.soft { color: var(--soft); font-size: .9rem; }
.notes { margin: .7rem 0; padding: .5rem .9rem .5rem 1.9rem; background: var(--warm-pale);
  border-left: 4px solid #e69f00; border-radius: .25rem; font-size: .92rem; max-width: 60rem; }
.notes li { margin: .2rem 0; overflow-wrap: anywhere; }
.missing { padding: .6rem .9rem; border: 1px dashed #b8c0c8; border-radius: .4rem;
  color: var(--soft); max-width: 46rem; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: 1.2rem 2rem; align-items: start; }
figure { margin: 0; min-width: 0; }
figure svg { width: 100%; max-width: 35rem; height: auto; display: block; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: .5rem 2rem; align-items: start; margin-bottom: 1.2rem; }
.beside > div { min-width: 0; }
.wide { grid-column: 1 / -1; overflow-x: auto; }
.wide svg { min-width: 34rem; max-width: 56rem; }
figcaption { font-size: .85rem; color: var(--soft); margin-top: .3rem; max-width: 40rem; }
.table { overflow-x: auto; margin: .6rem 0; border: 1px solid var(--line); border-radius: .4rem; }
table { border-collapse: collapse; width: 100%; font-size: .84rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap; }
th { background: var(--pale); border-bottom: 1px solid var(--line); font-weight: 600; }
td { border-bottom: 1px solid #eef1f4; } tr:last-child td { border-bottom: 0; }
.left { text-align: left; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; } th button::after { content: " \\2195"; color: #9aa4ae; }
th[aria-sort=ascending] button::after { content: " \\2191"; color: var(--ink); }
th[aria-sort=descending] button::after { content: " \\2193"; color: var(--ink); }
tr.out td { color: var(--warm); }
pre { background: var(--pale); border: 1px solid var(--line); border-radius: .4rem;
  padding: .6rem .8rem; overflow-x: auto; font-size: .84rem; margin: .3rem 0 .8rem; }
@media (max-width: 40rem) { .answer { font-size: 1.2rem; } .card b { font-size: 1.25rem; }
  .cards { grid-template-columns: repeat(2, 1fr); } }
@media print { body { font-size: 10pt; } main { max-width: none; padding: 0; }
  nav, th button::after { display: none; } h2, h3 { break-after: avoid; }
  figure, .card, .notes, tr { break-inside: avoid; } .table, .wide { overflow: visible; }
  .figures { grid-template-columns: 1fr 1fr; } .wide svg { min-width: 0; }
  .cards { grid-template-columns: repeat(auto-fit, minmax(6.5rem, 1fr)); }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; } table { font-size: 6.5pt; }
  th, td { padding: .1rem .2rem; } th, td.left { white-space: normal; }
  th { overflow-wrap: anywhere; } thead { display: table-row-group; } .card b { font-size: 13pt; }
  .card, .notes, th, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""

# Click on a heading sorts by it: numbers by their value, text by its letters, empty cells last.
SORT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const column = head.cellIndex, down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const n = Number(x) - Number(y);
      return (Number.isNaN(n) ? x.localeCompare(y) : n) * (down ? -1 : 1);
    };
    body.append(...[...body.rows].sort(order));
  });
}
"""


def page(title: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The document. sections: (id, heading or "" for none, HTML)."""
    links = "".join(
        f'<a href="#{text(name)}">{text(heading)}</a>' for name, heading, _ in sections if heading
    )
    parts = [
        f'<section id="{text(name)}">' + (f"<h2>{text(heading)}</h2>" if heading else "") + body
        + "</section>" for name, heading, body in sections
    ]  # fmt: skip
    first, rest = parts[0], "\n".join(parts[1:])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{text(title)}</h1>\n{first}\n<nav>{links}</nav>\n{rest}\n</main>\n"
        f"<script>{SORT}</script>\n</body>\n</html>\n"
    )


def text(value: Any) -> str:
    """Any value as text that cannot be taken for markup, in elements and in quoted attributes."""
    return html.escape(str(value), quote=True)


def count(x: Any) -> str:
    """A count with three digits: 103k, 1.31T; a dash for none."""
    if not known(x):
        return "&ndash;"
    x = float(x)
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size * 0.9995 <= abs(x) < size * 999.5:
            return f"{float(f'{x / size:.3g}'):g}{letter}"
    return f"{float(f'{x:.3g}'):g}" if 1e-3 <= abs(x) < 1e3 or x == 0 else power(x)


def power(x: Any) -> str:
    """A large number as 5.76 x 10^23, in HTML."""
    if not known(x):
        return "&ndash;"
    front, _, exponent = f"{float(x):.2e}".partition("e")
    digits = f"{float(front):g}"
    ten = f"10<sup>{int(exponent)}</sup>"
    return ten if digits == "1" else f"{digits}&times;{ten}"


def nats(x: Any) -> str:
    return f"{float(x):.4f}" if known(x) else "&ndash;"


def percent(x: Any) -> str:
    """A share as a percentage of two digits."""
    return f"{float(f'{100 * float(x):.2g}'):g}&nbsp;%" if known(x) else "&ndash;"


def digits(x: Any, places: int = 6) -> str:
    """A number with this many significant digits."""
    return f"{float(x):.{places}g}" if known(x) else "&ndash;"


def known(x: Any) -> bool:
    """Whether x is a finite number."""
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """Boxes of (label, value as HTML, remark as HTML)."""
    boxes = (
        f'<div class="card"><span>{text(label)}</span><b>{value}</b><span>{remark}</span></div>'
        for label, value, remark in items
    )
    return f'<div class="cards">{"".join(boxes)}</div>'


def notes(lines: Iterable[str]) -> str:
    """Warnings as a list; nothing for none."""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def missing(reason: str) -> str:
    """What stands where a part would be."""
    return f'<p class="missing">{text(reason)}</p>'


def command(line: str) -> str:
    return f"<pre><code>{text(line)}</code></pre>"


def beside(left: str, right: str) -> str:
    """Two parts side by side, one below the other where the page is narrow."""
    return f'<div class="beside"><div>{left}</div><div>{right}</div></div>'


# A cell: (HTML, value to sort by or None, class name or "").
Cell = tuple[str, Any, str]


def table(
    heads: Sequence[tuple[str, str]], rows: Sequence[tuple[str, Sequence[Cell]]], sort: bool = False
) -> str:
    """A table. heads: (label, class); rows: (class, cells)."""
    shown = []
    for label, kind in heads:
        inner = f'<button type="button">{text(label)}</button>' if sort else text(label)
        shown.append(f'<th scope="col" class="{kind}">{inner}</th>')
    body = []
    for kind, cells in rows:
        filled = []
        for value, key, style in cells:
            mark = "" if key is None else f' data-v="{text(key)}"'
            filled.append(f'<td class="{style}"{mark}>{value}</td>')
        body.append(f'<tr class="{kind}">{"".join(filled)}</tr>')
    return (
        f'<div class="table"><table><thead><tr>{"".join(shown)}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
