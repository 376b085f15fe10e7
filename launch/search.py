"""Finds the layout in which a training run is fastest on a machine that is not here.

    python -m launch.search --config=experiments/configs/llama2_7b.py --topology=v5p:4x4x4 \\
        --compile=3 --out=runs/search_7b

Every legal layout is priced by arithmetic: mesh (data, model, pipe), fully sharded or not, the
pipeline's schedule and repeats, micro-batches, layers computed again or kept. The config's own
choice of these is left aside; everything else in it stays. Layouts that do not fit the devices'
memory are left out. The best of each mesh are printed, and the first --compile of them compiled,
minutes each for large models, which needs the machine's compiler and no machine (see
launch.compile); --compile=0 needs neither. Last comes the choice, as flags to add to
experiments.train or launch.compile.

Seconds are the least a step takes (launch/roofline.py). Steps within 1 % of each other count as
equal: the one that needs least memory is taken. In --out, search.csv has a row for every legal
layout, search.json those printed and the choice.
Exit code 2: no layout is legal, none fits, or a number that prices need is not published; 1: the
compiler failed on all it was given.
"""

import json
import sys

from absl import flags

from experiments import cli
from launch import asked
from launch.topology import read_name, require_compiler
from lm.config import to_dict
from lm.errors import BadInput
from lm.progress import say

_TOPOLOGY = flags.DEFINE_string("topology", None, "the machine to search for, such as v5p:4x4x4")
_COMPILE = flags.DEFINE_integer("compile", 3, "layouts to compile; 0: none", lower_bound=0)
_OUT = flags.DEFINE_string("out", None, "the folder for search.csv and search.json")


def main() -> None:
    c = asked.config()
    if not _TOPOLOGY.value:
        raise BadInput("no machine given: add --topology=v5p:4x4x4 or another chip and shape")
    read_name(_TOPOLOGY.value)
    out = asked.folder(_OUT.value)
    if _COMPILE.value:
        require_compiler(_TOPOLOGY.value)
    from launch.paper import on_paper  # after the flags are checked: a mistake is told at once
    from launch.ranking import nothing_fits, rank
    from launch.search_text import best, sentence, table
    from launch.trials import compile_best

    machine = on_paper(_TOPOLOGY.value)
    ranking = rank(c, machine)
    if not ranking.fitting:
        raise nothing_fits(ranking, machine)
    n_fit, n_large = len(ranking.fitting), len(ranking.too_large)
    say(
        f"{n_fit + n_large} legal layouts, {n_large} of them too large for {machine.name}; "
        f"{ranking.refused} others training would refuse"
    )
    rows = [ranked.row() for ranked in (*ranking.fitting, *ranking.too_large)]
    found = ranking.of_meshes()
    compiled = compile_best(found, _TOPOLOGY.value, _COMPILE.value)
    print(table(found, compiled))
    chosen = best(found, compiled)
    print(sentence(chosen))
    whole = {
        "command": " ".join(sys.argv),
        "config": to_dict(c),
        "topology": machine.name,
        "legal": n_fit + n_large,
        "too_large": n_large,
        "refused": ranking.refused,
        "best_of_each_mesh": [
            {"layout": r.candidate.choice.words(), **r.row(), "compiled": compiled.get(i)}
            for i, r in enumerate(found)
        ],
        "chosen": chosen,
    }
    asked.write(
        out, {"search.csv": asked.csv(rows), "search.json": json.dumps(whole, indent=1) + "\n"}
    )


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
