"""How big a model, how many tokens, what loss, and how sure: a plan from a scaling law.

The law is one that you fitted (the law.json of experiments.fit, with its bootstrap.csv beside it
for the intervals) or a published one by name: kaplan_2020, chinchilla_2022, chinchilla_2022_tex,
chinchilla_replication_2024, data_constrained_2023.

Ask one of three questions:
  python -m experiments.plan --law=chinchilla_2022 --flops=5.76e23     what does this budget buy?
  python -m experiments.plan --law=chinchilla_2022 --loss=2.0          what does this loss cost?
  python -m experiments.plan --law=chinchilla_2022 --n=280e9 --d=300e9 what does this run reach?

--served_tokens: how many tokens the model will produce in its life. A served token costs a forward
pass, so smaller models trained for longer win; --flops is then the budget for training and serving
together. --unique_tokens: how much different text there is. Repeating it is worth less each time.
--half_width=0.05: how many runs would pin N* down to 5 %.

FLOPs are counted as 6 N D ("6nd"), or, with --config or for a law fitted by a sweep, as the exact
count of shapes like that config's ("exact"). The shape is the nearest that can be built.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli, config_source
from lm.config import freeze
from lm.errors import BadInput
from lm.laws import kinds
from lm.laws.design_runs import (
    isoflop_design,
    log_optimal_size,
    runs_like_the_fitted,
    runs_needed,
)
from lm.laws.law_file import KnownLaw, read_law
from lm.laws.plan import Question, check_amount, make_plan
from lm.laws.plan_frontier import frontier_plan
from lm.laws.plan_text import plan_text
from lm.laws.shape import Family, default_family
from lm.laws.stored import plain, read
from lm.whole_file import write as write_file

LAW = flags.DEFINE_string("law", None, "a law.json, its folder, or the name of a published law")
FLOPS = flags.DEFINE_float("flops", None, "a budget of FLOPs")
LOSS = flags.DEFINE_float("loss", None, "a loss to reach, nats per token")
N = flags.DEFINE_float("n", None, "parameters, with --d: evaluate this point")
D = flags.DEFINE_float("d", None, "training tokens, with --n")
SERVED = flags.DEFINE_float("served_tokens", 0.0, "tokens that the model will serve in its life")
UNIQUE = flags.DEFINE_float("unique_tokens", None, "different tokens there are to train on")
CONVENTION = flags.DEFINE_enum("convention", None, ["6nd", "exact"], "how FLOPs are counted")
HALF_WIDTH = flags.DEFINE_float(
    "half_width", None, "also say how many runs put N* within this, 0.05 for 5 %, at 80 %"
)
BUDGETS = flags.DEFINE_list(
    "budgets", [], "for --half_width: FLOP budgets of runs not yet trained, 7 sizes each"
)
NOISE = flags.DEFINE_float("noise", 0.01, "for --budgets: standard deviation of log loss of a run")
OUT = flags.DEFINE_string("out", ".", "the folder for plan.json")


def main() -> int | None:
    if not LAW.value:
        raise BadInput("no law given: add --law=chinchilla_2022 or --law=DIR/law.json")
    question = Question(FLOPS.value, LOSS.value, N.value, D.value, SERVED.value, UNIQUE.value)
    question.check()
    known = read_law(LAW.value)
    family, whose = _family(known)
    convention = CONVENTION.value or ("exact" if whose else "6nd")
    command = shlex.join(["python", "-m", "experiments.plan", *sys.argv[1:]])
    make = make_plan if known.frontier is None else frontier_plan
    plan = make(known, question, family, convention, command)
    plan["warnings"].append(
        f"shapes are like those of {whose}" if whose else
        "shapes are Llama-like (vocabulary 32000, length 2048): give --config for your own"
    )  # fmt: skip
    if HALF_WIDTH.value is not None:
        plan["runs_needed"] = _runs_needed(known, plan, HALF_WIDTH.value)
    path = write(plan, Path(OUT.value))
    print(plan_text(plan))
    print(f"Wrote {path}.")
    return None


def _runs_needed(known: KnownLaw, plan: dict[str, Any], wanted: float) -> dict[str, Any]:
    """How many runs bring N* at the plan's FLOPs to the wanted interval."""
    noise = NOISE.value or 0.0
    if not 0 < wanted <= 10 or not 0 < noise <= 10:
        raise BadInput(
            "--half_width and --noise must be above 0 and at most 10, such as 0.05 and 0.01"
        )
    answer = {"quantity": "n", "half_width": wanted, "level": 0.8}
    interval = plan["n"]["interval_80"]
    if BUDGETS.value and known.params:
        try:
            budgets = [float(b) for b in BUDGETS.value]
        except ValueError as e:
            raise BadInput(f"--budgets={','.join(BUDGETS.value)} are not numbers") from e
        for b in budgets:
            check_amount("budgets", b)
        design = isoflop_design(known.law, known.params, budgets)
        quantity = log_optimal_size(known.law, plan["flops"]["value"])
        runs = runs_needed(known.law, known.params, design, quantity, noise, wanted)
        return answer | {"runs": runs, "budgets": budgets, "noise": noise}
    if interval is None or known.n_runs is None or not interval[0] < interval[1]:
        raise BadInput(
            "--half_width needs a fitted law with an interval for N*, or --budgets=1e17,1e18,... "
            "of runs to come"
        )
    return answer | {"runs": runs_like_the_fitted(interval, known.n_runs, wanted)}


def write(plan: dict[str, Any], folder: Path) -> Path:
    """Writes plan.json whole or not at all; returns its path."""
    path = folder / "plan.json"
    text = json.dumps(plain(plan), indent=2, allow_nan=False) + "\n"
    write_file(path, text, "give another --out")
    return path


def _family(known: KnownLaw) -> tuple[Family, str]:
    """The shapes to count and build: --config's, else those of the sweep that fitted the law."""
    if flags.FLAGS.config or any(pairs for _, pairs in cli.config_overrides):
        config = config_source.from_flags().config()
        if config.model.vocab_size is None:
            raise BadInput(
                f"{flags.FLAGS.config} leaves model.vocab_size to its tokenizer, which a plan does "
                "not read: add --config.model.vocab_size=256 (bytes) or your tokenizer's size"
            )
        return Family(config.model, config.length), flags.FLAGS.config
    swept = _largest_run(known.path.parent) if known.path else None
    if swept is not None:
        path, values = swept
        config = freeze(
            {k: v for k, v in values.items() if k != config_source.PROVENANCE}, str(path)
        )
        return Family(config.model, config.length), str(path)
    return default_family(), ""


def _largest_run(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The config.json of the widest run that the sweep in that folder fitted, the first of several
    as wide, and what it holds: the shapes of the sweep's own plan. None where there is none."""
    paths = sorted(folder.glob("runs/*/config.json"))
    fitted = (read(folder / "sweep.json", kinds.SWEEP) or {}).get("runs")
    if fitted:  # else runs that no sweep lists
        paths = [folder / "runs" / name / "config.json" for name in fitted]  # not the held-out run
    found = {path: values for path in paths if (values := read(path, kinds.CONFIG))}
    # Without a vocabulary nothing can be counted.
    usable = [p for p, values in found.items() if values["model"]["vocab_size"] is not None]
    widest = max(usable, key=lambda p: found[p]["model"]["d_model"], default=None)
    return None if widest is None else (widest, found[widest])


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
