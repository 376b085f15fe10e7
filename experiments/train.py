"""Trains one model and leaves everything about the run in a folder.

    python -m experiments.train --config=experiments/configs/tiny.py --workdir=runs/tiny

The folder gets config.json (complete: --config=runs/tiny/config.json repeats the run),
metrics.jsonl (a row a logged step), checkpoints/ and result.json. Running the same command again
goes on from the newest checkpoint; a finished run says so. Change any field on the command line:

    python -m experiments.train --config=experiments/configs/tiny.py --workdir=runs/deeper \\
        --config.model.n_layers=4 --config.train.n_tokens=1e6

Several lengths of one run: with optim.schedule=wsd, optim.warmup_steps and optim.keep_trunk a
longer run starts from a shorter one's state before its decay, --branch_of=runs/shorter, and ends as
if it had been trained from the beginning. experiments.sweep does so by itself.

Several devices: --config.mesh.data=8 --config.mesh.model=2, and so on. --explain_layout says where
each parameter would live and what would cross devices, on as many devices as the mesh needs, and
trains nothing. --explain_optimizer says which rule, rate and weight decay each parameter gets.
"""

import dataclasses
import json

from absl import flags

from experiments import cli, config_source
from lm import group
from lm.config import Config
from lm.errors import BadInput
from lm.train import stop

_WORKDIR = flags.DEFINE_string("workdir", None, "the run's folder, s3:// or gs:// too; made if new")
_BRANCH_OF = flags.DEFINE_string(
    "branch_of", None, "the folder of a shorter wsd run with optim.keep_trunk to start from"
)
_EXPLAIN = flags.DEFINE_bool("explain_layout", False, "print the layout's table; train nothing")
_EXPLAIN_OPTIMIZER = flags.DEFINE_bool(
    "explain_optimizer", False, "print the rule, rate and decay of each parameter; train nothing"
)

MOST_SIMULATED = 16_384  # devices of --explain_layout


def main() -> None:
    if _EXPLAIN.value:
        return _explain(config_source.from_flags().config())
    if _EXPLAIN_OPTIMIZER.value:
        return _explain_optimizer(config_source.from_flags().config())
    c = group.together(_config)
    from lm.train.run import train  # after the config is checked: a mistake is told at once

    result = train(c, _WORKDIR.value or "", _BRANCH_OF.value or None)
    if group.first():
        print(json.dumps(result))


def _explain(c: Config) -> None:
    """Prints the table of a layout, on simulated devices."""
    import math

    import jax

    sizes = (c.mesh.data, c.mesh.model, c.mesh.pipe)
    if math.prod(sizes) > MOST_SIMULATED:
        raise BadInput(
            f"the mesh has {math.prod(sizes):,} devices, and at most {MOST_SIMULATED:,} are "
            "simulated: make an axis smaller"
        )
    jax.config.update("jax_platforms", "cpu")
    if -1 not in sizes:
        jax.config.update("jax_num_cpu_devices", math.prod(sizes))
    from lm.train import explain, setup

    c = c if c.model.vocab_size else setup.load_data(c)[0]
    anywhere = dataclasses.replace(c.model, attention="blocked")  # kernels want their hardware
    print(explain.text(setup.build(dataclasses.replace(c, model=anywhere), None)))


def _explain_optimizer(c: Config) -> None:
    from lm.model import transformer
    from lm.optim import groups
    from lm.train import setup

    c = c if c.model.vocab_size else setup.load_data(c)[0]
    print(groups.explain(c.optim, transformer.table(c.model, c.pipeline.repeats)))


def _config() -> Config:
    if not _WORKDIR.value:
        raise BadInput("no work folder given: add --workdir=runs/NAME")
    return config_source.from_flags().config()


def run() -> None:
    stop.hold()
    cli.run(main, joins=True, addresses=True)


if __name__ == "__main__":
    run()
