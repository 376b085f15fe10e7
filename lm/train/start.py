"""The first parameters of a run, taken from another run's folder (checkpoint.start_from).

What is there under the same path, in the same shape and dtype, is taken as it is; optimizer and
step begin anew. Anything else has to be asked for: another dtype by start_cast, and by start_grown
a model that has grown, where each array has its leading corner from the old one and the rest, like
whole new arrays, begins as it would have.
"""

from pathlib import Path

import jax
import jax.numpy as jnp

from lm.config import CheckpointConfig, Config
from lm.errors import BadInput
from lm.layout import Layout
from lm.progress import say
from lm.train import state
from lm.train.checkpoint import restore_run
from lm.train.leaves import by_path, differences, leaves, name, shown
from lm.train.mirror import place, read_together
from lm.train.state import TrainState
from lm.train.steps import Steps
from lm.train.workdir import saved_config


def fetch(c: CheckpointConfig, workdir: Path) -> None:
    """Copies the run to begin from to this machine, where it is behind an address and is needed.
    All processes of a group call it."""
    if c.start_from and not Steps(workdir / "checkpoints").all():
        read_together(c.start_from)


def check(c: Config, workdir: Path) -> None:
    """Raises BadInput where a run without checkpoints of its own has none to begin from, or one
    that hashes its n-grams otherwise."""
    start_from = c.checkpoint.start_from
    none = lambda folder: not Steps(folder / "checkpoints").all()
    if not start_from or not none(workdir):
        return
    folder = place(start_from, reading=True)
    if none(folder):
        raise BadInput(
            f"checkpoint.start_from {start_from} holds no checkpoint: give the work folder of a "
            "trained run"
        )
    models = saved_config(folder)[0].model, c.model
    for field in ("ngram_order", "ngram_rows"):
        then, now = (getattr(m, field) for m in models)
        if then != now and all(m.ngram_order > 1 for m in models):
            raise BadInput(
                f"model.{field} is {then} in {start_from} and {now} here, where n-grams would find "
                "the rows of others: set the same"
            )


def started(first: TrainState, c: CheckpointConfig, layout: Layout) -> TrainState:
    """Returns the first state with parameters from c.start_from's newest checkpoint: its average of
    the weights where it kept one. Raises BadInput with the paths that differ and may not."""
    params = first.params
    found = restore_run(place(c.start_from or "", reading=True), layout, any_dtype=True).state
    theirs = state.evaluated(found)
    differ = differences(leaves(theirs), leaves(params))
    allowed = {"missing": c.start_grown, "grown": c.start_grown, "dtype": c.start_cast}
    refused = [d for d in differ if not allowed.get(d.kind)]
    if refused:
        raise BadInput(
            f"the parameters in {c.start_from} are not this model's ({shown(refused)}): change the "
            "model, or allow what may be: checkpoint.start_grown=true for arrays that are new or "
            "larger here, checkpoint.start_cast=true for other dtypes"
        )
    say(f"the first parameters are those of step {int(found.step)} of {c.start_from}")
    for d in differ:
        say(f"  {d.text}")
    old = by_path(theirs)

    def take(path: tuple, new: jax.Array) -> jax.Array:
        if name(path) not in old:
            return new
        return jax.jit(_onto, out_shardings=new.sharding)(new, old[name(path)])

    params = jax.tree_util.tree_map_with_path(take, params)
    average = jax.tree.map(jnp.copy, params) if first.average else ()
    return first._replace(params=params, average=average)


def _onto(new: jax.Array, old: jax.Array) -> jax.Array:
    """Returns the old values in the leading corner of the new array."""
    corner = tuple(slice(n) for n in old.shape)
    return new.at[corner].set(old.astype(new.dtype))
