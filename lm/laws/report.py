"""A sweep's report as one HTML page: the answer first, then what it rests on.

`report` takes what was found as plain values and returns the document; what is missing is said
where it would have stood. The page opens from disk and asks for nothing outside itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm.laws import report_page as p
from lm.laws.evidence import Evidence
from lm.laws.figures.style import svg_inline
from lm.laws.isoflop import Frontier
from lm.laws.report_ablation import variants_table
from lm.laws.report_answer import answer, interval_of
from lm.laws.report_runs import runs_table

WIDE = 6.5  # inches: a wider figure scrolls on a small screen instead of shrinking to nothing


@dataclass(frozen=True)
class Contents:
    """What a report is made of; every part but the title may be missing.

    frame: the table of runs; held_out: rows of runs that no fit saw. evidence: law and runs, or
    None with `no_law` the reason. figures: SVG documents by the names of
    lm/laws/figures/gallery.py; ablation: what lm/sweep/ablation.py found; undrawn: name -> reason.
    validation: how well the candidates predicted the largest budget. commands: (what it does,
    command line).
    """

    title: str
    frame: Any = None
    held_out: Any = None
    evidence: Evidence | None = None
    no_law: str = "there is no law.json: fit one with experiments.fit"
    plan: Mapping[str, Any] | None = None
    prediction: Mapping[str, Any] | None = None
    ablation: Mapping[str, Any] | None = None
    validation: Mapping[str, Any] | None = None
    figures: Mapping[str, str] = field(default_factory=dict)
    undrawn: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[tuple[str, str]] = ()


def report(c: Contents) -> str:
    """The whole page; of an ablation the variants, in place of a law and what rests on it."""
    if c.ablation is not None:
        return p.page(
            c.title,
            [
                ("ablation", "Variants", variants(c)),
                ("curves", "Loss curves", loss_curves(c)),
                ("runs", "Table of runs", runs(c)),
                ("repeat", "Commands to repeat this", repeat(c)),
            ],
        )
    largest = c.evidence.content.get("largest_flops") if c.evidence else None
    return p.page(
        c.title,
        [
            ("answer", "", answer(c.plan, largest)),
            ("check", "Was the law right? A run predicted before training", check(c)),
            ("isoflop", "IsoFLOP curves", isoflop(c)),
            ("surface", "The fitted law and where it is best", surface(c)),
            ("law", "Constants and how sure they are", constants(c)),
            ("curves", "Loss curves", loss_curves(c)),
            ("runs", "Table of runs", runs(c)),
            ("repeat", "Commands to repeat this", repeat(c)),
        ],
    )


def check(c: Contents) -> str:
    """The held-out run: predicted against measured."""
    held = c.prediction
    if held is None:
        return p.missing(
            "No held-out run: there is no prediction.json, so the law has not been tested beyond "
            "the runs it was fitted to."
        )
    predicted, measured = held.get("predicted"), held.get("measured")
    if predicted is None or measured is None:
        return p.missing(
            f"Run {held.get('run_id')} was predicted and has no measured loss yet: it did not "
            "finish."
        )
    error = abs(predicted / measured - 1)
    best = held.get("best_fitted_loss")
    interval = held.get("interval_80")
    boxes = [
        ("predicted loss", p.nats(predicted), interval_of(held, p.nats)),
        ("measured loss", p.nats(measured), _inside(measured, interval)),
        ("error of the prediction", p.percent(error), "of the measured loss"),
    ]  # fmt: skip
    if p.known(best):
        boxes.append(
            ("error without a law", p.percent(abs(best / measured - 1)),
             f"repeating the best fitted loss, {p.nats(best)}")
        )  # fmt: skip
    size = (
        f"<p>Run <b>{p.text(held.get('run_id'))}</b>: {p.count(held.get('n_params'))} parameters, "
        f"{p.count(held.get('n_tokens'))} tokens, {p.power(held.get('flops'))} FLOPs. The law was "
        f"fitted without it.{_what_80(held)}</p>"
    )
    return size + p.cards(boxes) + _figures(
        c, ("predicted_measured", "Fitted runs and the held-out run: measured against predicted."),
        ("rollout", "The same test inside the table: fits to the smaller runs predict the larger."),
    )  # fmt: skip


def _what_80(held: Mapping[str, Any]) -> str:
    """What the interval is of, and whether the prediction came before the run."""
    said = ""
    law = held.get("law_interval_80")
    if law and held.get("interval_80"):
        said += (
            " Of runs like it 80 % should fall into the interval: how sure the law is "
            f"({p.nats(law[0])} to {p.nats(law[1])}), with the scatter of single runs around it."
        )
    if held.get("after_training"):
        said += " The run was trained before this prediction was made: it is no test beforehand."
    return said


def _inside(measured: float, interval: Sequence[float] | None) -> str:
    if not interval:
        return "&nbsp;"
    return "inside the interval" if interval[0] <= measured <= interval[1] else "outside it"


def isoflop(c: Contents) -> str:
    """IsoFLOP curves, their minima in a table and the power laws through the minima."""
    curves = _figures(
        c, ("isoflop_curves", "Runs of one budget, a parabola in log N through each budget and its "
            "minimum; dashed, the law fitted to all runs."),
    )  # fmt: skip
    powers = _figures(
        c, ("isoflop_minima", "The minima against their budgets: how the best size and the best "
            "number of tokens grow."),
    )  # fmt: skip
    frontier = c.evidence.frontier if c.evidence else None
    return curves + powers if frontier is None else p.beside(curves, _minima(frontier)) + powers


def _minima(frontier: Frontier) -> str:
    rows = [
        ("out" if g.skipped else "", [
            (p.power(g.flops), None, ""), (str(len(g.members)), None, ""),
            (p.count(g.n), None, ""), (p.count(g.d), None, ""), (p.nats(g.loss), None, ""),
        ]) for g in frontier.groups
    ]  # fmt: skip
    heads = [("FLOPs", ""), ("runs", ""), ("N at minimum", ""), ("D at minimum", ""), ("loss", "")]
    a, b = frontier.params["a"], frontier.params["b"]
    return (
        p.table(heads, rows)
        + f"<p>Through the minima N* grows as C<sup>{a:.3f}</sup>, D* as C<sup>{b:.3f}</sup>.</p>"
        + p.notes(frontier.warnings)
    )


def surface(c: Contents) -> str:
    """The fitted surface with the frontier and its band; a law of one input with its runs."""
    if "one_input" in c.figures:
        return _figures(
            c, ("one_input", "The fitted law through its runs; hollow, runs it was not fitted to."),
            ("residuals", "What the law leaves unexplained, run by run."),
        )  # fmt: skip
    return _figures(
        c, ("surface", "Contours of the fitted loss; in red the best size of each budget, N*(C), "
            "with the band that holds 80 % of the resampled fits."),
        ("residuals", "What the law leaves unexplained, run by run."),
        ("frontier", "N*, D* and the loss along the frontier, dotted beyond the largest run."),
    )  # fmt: skip


def constants(c: Contents) -> str:
    """The law's parameters with intervals, its status and warnings."""
    if c.evidence is None:
        return p.missing(f"No law: {c.no_law}.")
    law = c.evidence.content
    names = [*law["params"], *(k for k in (law.get("exponents") or {}) if k not in law["params"])]
    values = {**(law.get("exponents") or {}), **law["params"]}
    rows = []
    for name in names:
        spread = (law.get("intervals") or {}).get(name) or {}
        rows.append(("", [
            (p.text(name), None, "left"), (p.digits(values[name]), None, ""),
            (p.digits((law.get("stderr") or {}).get(name), 3), None, ""),
            (_between(spread, "10", "90"), None, ""),
            (_between(spread, "2.5", "97.5"), None, ""),
        ]))  # fmt: skip
    heads = [("constant", "left"), ("value", ""), ("std. error", ""), ("80 % interval", ""),
             ("95 % interval", "")]  # fmt: skip
    goal, starts = law.get("objective"), law.get("starts")
    how = [f"method {law.get('method')}", f"{law.get('n_runs')} runs"]
    if goal:
        total = f"{goal['sum']:.6g}" if p.known(goal.get("sum")) else "not finite"
        delta = f", delta {goal['delta']:g}" if goal.get("delta") else ""
        how.append(f"{goal['name']} objective{delta}: sum {total}")
    if starts:
        how.append(f"{starts['agreeing']} of {starts['tried']} starts agree")
    how.append(f"status {law.get('status')}")
    cloud = _figures(c, ("bootstrap_cloud", "Each dot is the law fitted to a resampled table."))
    body = p.table(heads, rows)
    body += f'<p class="soft">{p.text("; ".join(how))}.</p>'
    exponents = law.get("exponents")
    if exponents:
        body += (
            "<p>N* grows as C<sup>a</sup> and D* as C<sup>b</sup>: double the budget, and the best "
            f"model grows {2 ** exponents['a']:.2f} times and its tokens {2 ** exponents['b']:.2f} "
            "times.</p>"
        )
    body += p.notes(law.get("warnings") or [])
    profiles = _figures(
        c, ("profile_curves", "Each constant held at other values while all others are fitted "
            "again: where the curve crosses a line, that interval ends."),
    )  # fmt: skip
    formula = f"<p>{p.text(law.get('formula', law['law']))}</p>"
    return formula + _chosen(c, law) + p.beside(body, cloud) + profiles


def _chosen(c: Contents, law: Mapping[str, Any]) -> str:
    """Among which laws this one was chosen, and how close it was."""
    found = c.validation or {}
    errors = found.get("largest_budget_error") or {}
    if found.get("chosen") != law["law"] or not errors:
        own = law.get("validation")
        said = (
            "Nothing was validated: no validation.json says how well this law, or another, "
            "predicts the largest budget from the others."
            if not own else
            f"Fitted to the {own['n_fitted']} runs below {p.power(own['threshold'])} FLOPs, it "
            f"predicts the other {own['n_predicted']} within "
            f"{p.percent(own['mean_relative_error'])}."
        )  # fmt: skip
        return f"<p>{said}</p>"
    if not all(p.known(e) for e in errors.values()):
        return (
            f"<p>Not validated: there are too few runs below the largest budget to choose among "
            f"{p.text(', '.join(errors))}.</p>"
        )
    tried = ", ".join(f"{p.text(name)} ({p.percent(e)})" for name, e in errors.items())
    return f"<p>Chosen among {tried} by error on the largest budget, fitted without it.</p>"


def _between(spread: Mapping[str, Any], low: str, high: str) -> str:
    if not (p.known(spread.get(low)) and p.known(spread.get(high))):
        return "&ndash;"
    return f"{p.digits(spread[low], 4)} to {p.digits(spread[high], 4)}"


def variants(c: Contents) -> str:
    """Each variant's mean loss and its difference to the baseline, drawn and tabled."""
    assert c.ablation is not None
    drawn = _figures(
        c, ("ablation", "Loss of each variant less the baseline's of the same seed: seeds as dots, "
            "their mean with the 95 % interval of Student's t."),
    )  # fmt: skip
    return p.beside(variants_table(c.ablation), drawn)


def loss_curves(c: Contents) -> str:
    """Learning curves of all runs, and what a sharper metric would make of their losses."""
    if c.ablation is not None:
        return _figures(c, ("learning_curves", "Training loss of every run against FLOPs."))
    return _figures(
        c, ("learning_curves", "Training loss (averaged over even steps of log FLOPs) against "
            "FLOPs, coloured by size; dashed, the lowest loss any run had reached by then."),
        ("emergence", "The same runs judged by a smooth and by a sharp metric: what seems to "
         "appear suddenly has been improving all along."),
    )  # fmt: skip


def runs(c: Contents) -> str:
    """The table of runs, with those that no fit saw."""
    if c.frame is None:
        return p.missing("There is no runs.csv.")
    return runs_table(c.frame, c.held_out, c.evidence)


def repeat(c: Contents) -> str:
    """The commands, in order."""
    if not c.commands:
        return p.missing("No command was recorded in law.json or plan.json.")
    return "".join(f"<p>{p.text(what)}</p>{p.command(line)}" for what, line in c.commands)


def _figures(c: Contents, *wanted: tuple[str, str]) -> str:
    """Figures by name with their captions; a sentence where one could not be drawn."""
    made, failed = [], []
    for name, caption in wanted:
        if name not in c.figures:
            reason = c.undrawn.get(name, c.no_law)
            failed.append(p.missing(f"Not drawn ({name.replace('_', ' ')}): {reason}."))
            continue
        width, drawn = svg_inline(c.figures[name], name, caption)
        kind = ' class="wide"' if width > WIDE else ""
        made.append(f"<figure{kind}>{drawn}<figcaption>{p.text(caption)}</figcaption></figure>")
    grid = f'<div class="figures">{"".join(made)}</div>' if made else ""
    return grid + "".join(failed)
