"""Compiles a training run for a machine that is not here, and says what it would cost there.

    python -m launch.compile --config=experiments/configs/llama2_7b.py --topology=v5p:4x4x4 \\
        --out=runs/compile_7b --config.mesh.data=64

The step is the very one that training runs. No accelerator is needed, only its compiler:
pip install -e '.[tpu]' or '.[cuda]' on Linux (x86-64). A topology is a chip and a shape in
chips: v4, v5e, v5p, v6e or tpu7x, such as v5e:16x16; 2xv5e:16x16 is two such slices joined by the
data-centre network; h100:8 is a box of eight GPUs and 4xh100:8 four of them. The data is not read:
the vocabulary comes from model.vocab_size.

Prints memory of a device, FLOPs executed against the model's, what crosses devices along which
mesh axis, and the least time of a step with what bounds it; compile.json in --out holds the same
with every number. Exit code 2: the config, or it does not fit; 1: the compiler failed.
"""

import json
import sys

from absl import flags

from experiments import cli
from launch import asked
from launch.apart import apart
from launch.report_text import text
from launch.topology import read_name
from lm.config import to_dict
from lm.errors import BadInput
from lm.progress import say

_TOPOLOGY = flags.DEFINE_string("topology", None, "the machine to compile for, such as v5e:4x4")
_OUT = flags.DEFINE_string("out", None, "the folder that gets compile.json; made if need be")


def main() -> None:
    c = asked.config()
    if not _TOPOLOGY.value:
        raise BadInput("no machine given: add --topology=v5e:4x4 or another chip and shape")
    read_name(_TOPOLOGY.value)
    out = asked.folder(_OUT.value)
    from launch.compiled import report  # after the flags are checked: a mistake is told at once

    what = f"compiling for {_TOPOLOGY.value}"
    say(f"{what} ...")
    found = apart(what, report, to_dict(c), _TOPOLOGY.value)
    found = {"command": " ".join(sys.argv), "config": to_dict(c), **found}
    asked.write(out, {"compile.json": json.dumps(found, indent=1) + "\n"})
    print(text(found))


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
