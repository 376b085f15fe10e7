"""The very step of training, compiled for a machine that is not here, and what it costs there.

Runs in a process of its own (launch/apart.py): nothing here is called where a run trains.
"""

import re
import time
from typing import Any, cast

from launch.report import Compiled, describe
from launch.topology import Machine, machine
from lm.config import Config, freeze
from lm.errors import BadInput, CannotFinish
from lm.layout import Layout, make_layout


def lower(c: Config, layout: Layout):
    """Returns (lowered step, run): what training compiles for its largest batch, on any devices."""
    import jax

    from lm.data.dataset import Batch, dtypes
    from lm.train import state as train_state
    from lm.train.setup import build
    from lm.train.step import jit_step

    run = build(c, cast(Any, None), layout)  # the data gives the vocabulary, and that is known
    rows = max(stage.batch_size for stage in run.horizon.stages)
    step = jit_step(c, run.model, run.tx, run.horizon.steps, layout)
    abstract = train_state.abstract(run.model.table, run.tx, layout)
    of = lambda dtype: jax.ShapeDtypeStruct((rows, c.length), dtype, sharding=layout.batch)
    batch = Batch(*(cast(Any, d and of(d)) for d in dtypes(c.data.packing)))
    with jax.set_mesh(layout.mesh):
        return step.lower(abstract, batch), run


def report(config: dict[str, Any], topology: str) -> dict[str, Any]:
    """Returns what compile.json holds, for a complete config: the vocabulary size is in it."""
    c = freeze(config)
    m = machine(topology)
    layout = make_layout(c.mesh, m.devices)
    lowered, run = lower(c, layout)
    compiled = compile_lowered(lowered, m)
    return describe(m, run, compiled)


def compile_lowered(lowered, m: Machine) -> Compiled:
    """Returns the compiled program; its failures become sentences with the numbers."""
    from jax.errors import JaxRuntimeError

    started, cpu = time.monotonic(), time.process_time()
    try:
        compiled = lowered.compile()
    except JaxRuntimeError as e:
        raise explained(str(e), m) from e
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    memory = compiled.memory_analysis()
    if memory.peak_memory_in_bytes > m.chip.hbm_limit:  # compilers for GPUs do not look
        raise does_not_fit(
            m, f"{memory.peak_memory_in_bytes / 2**30:.2f}", f"{m.chip.hbm_limit / 2**30:.2f}"
        )
    return Compiled(compiled.as_text(), memory, seconds, cpu)


def explained(said: str, m: Machine) -> Exception:
    """Returns a compiler's error as one that says what to do."""
    if said.startswith("RESOURCE_EXHAUSTED"):
        amounts = re.search(r"\(([\d.]+)G\)\s+exceeds available \w+ \(([\d.]+)G\)", said)
        amounts = amounts or re.search(r"[Uu]sed ([\d.]+)G of ([\d.]+)G", said)
        return does_not_fit(m, *(amounts.groups() if amounts else ("more", "less")))
    first = " ".join(said.split())[:300]
    return CannotFinish(
        f"the compiler for {m.name} failed, which is no fault of the config ({first}): another "
        f"layout or other versions of jax and {m.compiler} may pass"
    )


def does_not_fit(m: Machine, needed: str, available: str) -> BadInput:
    return BadInput(
        f"the step does not fit {m.name}: it needs {needed} GiB on each device, which has "
        f"{available} GiB: shard over more devices, lower train.batch_size or raise "
        "train.accumulate, or set model.remat=true"
    )
