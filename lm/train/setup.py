"""From a config to everything a run is made of: data, layout, model, optimizer, length."""

import dataclasses
from typing import Any, NamedTuple

import jax

from lm import budget, group
from lm.config import FUSED_ATTENTION, Config, OptimConfig
from lm.config_checks import check_axes
from lm.data import mixture
from lm.data.build import Dataset
from lm.data.build import build as build_data
from lm.errors import BadInput
from lm.evaluate import batch_size
from lm.layout import Layout, make_layout
from lm.model import transformer
from lm.model.fused import SPLASH_BLOCK, SPLASH_LANES
from lm.optim import groups
from lm.optim.build import Optimizer
from lm.optim.build import build as build_optimizer
from lm.progress import say
from lm.train import memory, reproducible


class Run(NamedTuple):
    config: Config  # complete: the vocabulary size is filled in
    dataset: Any  # lm.data Dataset; None where nothing is read
    layout: Layout
    model: transformer.Model
    tx: Optimizer
    horizon: budget.Horizon


def load_data(c: Config) -> tuple[Config, Dataset]:
    """Returns the config with its vocabulary size, and the data it names."""
    dataset = build_data(c.data, c.length, c.seed)
    return with_vocabulary(c, dataset.vocab_size), dataset


def with_vocabulary(c: Config, tokenizer_size: int) -> Config:
    """Returns the config with model.vocab_size filled in; raises BadInput if it is too small."""
    wanted = c.model.vocab_size
    if wanted is not None and wanted < tokenizer_size:
        raise BadInput(
            f"model.vocab_size {wanted} is smaller than the tokenizer's {tokenizer_size}: "
            "leave it none"
        )
    return dataclasses.replace(
        c, model=dataclasses.replace(c.model, vocab_size=wanted or tokenizer_size)
    )


def model_of(c: Config) -> transformer.Model:
    """Returns the model of a config whose vocabulary size is filled in: the one that training,
    generation and benchmarks run. float64 turns on JAX's wide types for the process."""
    p = c.precision
    if p.compute == "float64":
        jax.config.update("jax_enable_x64", True)  # or JAX would make it float32
    return transformer.build(c.model, p.compute, p.reduce, c.pipeline.repeats, p.matmul)


def build(c: Config, dataset: Dataset | None, layout: Layout | None = None) -> Run:
    """Returns the run's parts on this process's devices; raises BadInput where `check` does,
    and for a run that is too short for its schedule or its late gradients."""
    layout = layout or make_layout(c.mesh)
    check(c, layout)
    horizon = budget.horizon(c)
    _check_length(c.optim, horizon.steps)
    model = model_of(c)
    tx = build_optimizer(c.optim, model.table, c.precision)
    return Run(c, dataset, layout, model, tx, horizon)


def _check_length(o: OptimConfig, steps: int) -> None:
    if o.staleness >= steps:
        raise BadInput(
            f"optim.staleness {o.staleness} with {steps} steps: no gradient would ever be used; "
            "lower it or train for longer"
        )
    warmup = o.warmup_steps or 0  # a fraction is one of any length
    if warmup > steps:
        raise BadInput(
            f"optim.warmup_steps {warmup} with {steps} steps: the peak would never be reached; "
            "lower it or train for longer"
        )
    if o.schedule == "wsd" and warmup and warmup + o.decay_fraction * steps > steps * (1 + 1e-12):
        raise BadInput(
            f"optim.warmup_steps {warmup} and optim.decay_fraction {o.decay_fraction} of {steps} "
            "steps overlap: lower one of them or train for longer"
        )


def on_this_machine(c: Config, ended: bool = False) -> Run:
    """Returns the run's parts with its data, on this process's devices; nothing is made on disk.

    ended: nothing is left to train, which then takes no memory.
    Raises BadInput for whatever can be known to go wrong."""
    layout = make_layout(c.mesh)
    on_cpu = layout.platform == "cpu" and not ended
    if on_cpu:
        memory.check(c, group.size())
    c, dataset = load_data(c)
    run = build(c, dataset, layout)
    if on_cpu:
        memory.check(c, group.size(), batch_size(c, dataset))
    if not ended:
        _tell(run)
    return run


def _tell(run: Run) -> None:
    """Says what the config does not: the mesh as it is, and which values decay."""
    c, layout = run.config, run.layout
    if layout.mesh.size > 1:
        say(layout.told())
    if layout.over_sockets and layout.fully_sharded and layout.data_size > 1:
        say(
            "fully sharded between CPUs: every gather and sum starts some 4 ms late; "
            "mesh.fully_sharded=false sums all gradients at once and is faster"
        )
    if c.train.reproducible:
        say(f"train.reproducible: {reproducible.told(c.train)}")
    if layout.stages == 1 and c.pipeline.microbatches > 1:
        say(
            f"pipeline.microbatches {c.pipeline.microbatches} cuts nothing with mesh.pipe 1: "
            "train.accumulate would"
        )
    if run.dataset.parts:
        passed = mixture.epochs(run.dataset, run.horizon.sequences(run.horizon.steps))
        say(f"epochs: {', '.join(f'{name} {n:.2f}' for name, n in passed.items())}")
    say(f"{groups.told(c.optim, run.model.table)} (--explain_optimizer lists them)")


def check(c: Config, layout: Layout) -> None:
    """Raises BadInput where batches, sequences or the attention do not fit the layout."""
    check_axes(c, layout.model_size, layout.stages)
    t = c.train
    name, parts = "train.accumulate", t.accumulate
    if layout.stages > 1:
        name, parts = "pipeline.microbatches", c.pipeline.microbatches
    sizes = (t.batch_size, *(size for _, size in t.batch_growth))
    for rows in sizes:
        if rows % (parts * layout.data_size):
            raise BadInput(
                f"train.batch_size {rows} is not divisible by {name} {parts} times mesh.data "
                f"{layout.data_size}: change one of them"
            )
    n_parts = reproducible.parts(t)
    if t.reproducible and n_parts % layout.data_size:
        rows = ", ".join(map(str, sizes))
        raise BadInput(
            f"train.reproducible cuts batches of {rows} rows (train.batch_size, train.batch_growth)"
            f" into {n_parts} equal parts, and mesh.data {layout.data_size} does not divide them: "
            f"set it to a divisor of {n_parts}, or change the batches"
        )
    if c.length % layout.model_size:
        raise BadInput(
            f"sequences of {c.length} tokens are split over mesh.model {layout.model_size}, which "
            "does not divide them: change data.length or mesh.model"
        )
    _check_attention(c, layout.platform)


def _check_attention(c: Config, have: str) -> None:
    kernel = c.model.attention
    needed = FUSED_ATTENTION.get(kernel, have)
    if have != needed:
        raise BadInput(
            f"model.attention={kernel} runs on a {needed.upper()} and these devices are {have}s: "
            "set model.attention=blocked"
        )
    if kernel == "cudnn" and c.precision.compute not in ("bfloat16", "float16"):
        raise BadInput(
            f"model.attention=cudnn computes in 16 bits and precision.compute is "
            f"{c.precision.compute}: set it to bfloat16, or model.attention=blocked"
        )
    block = SPLASH_LANES if c.length < SPLASH_BLOCK else SPLASH_BLOCK
    if kernel == "splash" and c.length % block:
        raise BadInput(
            f"model.attention=splash takes sequences of a multiple of {SPLASH_LANES} tokens up to "
            f"{SPLASH_BLOCK} and of {SPLASH_BLOCK} above, and these have {c.length}: change "
            "data.length or model.max_length, or set model.attention=blocked"
        )
