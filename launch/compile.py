"""Compiles a training run for a machine that is not here, and says what it would cost there.

    python -m launch.compile --config=experiments/configs/llama2_7b.py --topology=v5p:4x4x4 \\
        --out=runs/compile_7b --config.mesh.data=64

The step is the very one that training runs. No accelerator is needed, only its compiler:
pip install 'isoflop[tpu]' or 'isoflop[cuda]' on Linux (x86-64). A topology is a chip and a shape in
chips: v4, v5e, v5p, v6e or tpu7x, such as v5e:16x16; 2xv5e:16x16 is two such slices joined by the
data-centre network; h100:8 is a box of eight GPUs and 4xh100:8 four of them. The data is not read:
the vocabulary comes from model.vocab_size.

Prints memory of a device, FLOPs executed against the model's, what crosses devices along which
mesh axis, and the least time of a step with what bounds it; compile.json in --out holds the same
with every number. Exit code 2: the config, or it does not fit; 1: the compiler failed.
"""

import json
import sys
from pathlib import Path

from absl import flags

from experiments import cli, config_source
from launch.apart import apart
from launch.report_text import text
from launch.topology import read_name
from lm.config import to_dict
from lm.errors import BadInput, CannotSave
from lm.progress import say

_TOPOLOGY = flags.DEFINE_string("topology", None, "the machine to compile for, such as v5e:4x4")
_OUT = flags.DEFINE_string("out", None, "the folder that gets compile.json; made if need be")


def main() -> None:
    c = config_source.from_flags().config()
    if c.model.vocab_size is None:
        raise BadInput(
            "model.vocab_size is none and the data is not read here: add "
            "--config.model.vocab_size=N (256 for bytes)"
        )
    if not _TOPOLOGY.value:
        raise BadInput("no machine given: add --topology=v5e:4x4 or another chip and shape")
    read_name(_TOPOLOGY.value)
    out = Path(_OUT.value) if _OUT.value else None
    if out and out.exists() and not out.is_dir():
        raise BadInput(f"--out={out} is a file: name a folder")
    from launch.compiled import report  # after the flags are checked: a mistake is told at once

    what = f"compiling for {_TOPOLOGY.value}"
    say(f"{what} ...")
    found = apart(what, report, to_dict(c), _TOPOLOGY.value)
    found = {"command": " ".join(sys.argv), "config": to_dict(c), **found}
    print(text(found))
    if out:
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / "compile.json").write_text(json.dumps(found, indent=1) + "\n")
        except OSError as e:
            raise CannotSave(f"cannot write in {out}: {e.strerror or e}") from e


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
