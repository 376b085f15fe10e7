"""What settings have to fulfil, alone and together; each broken rule is one sentence."""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from lm.config_fields import (
    BUDGETS,
    COMPUTE,
    FFNS,
    FUSED_ATTENTION,
    MATMULS,
    NORM_POSITIONS,
    NORMS,
    OPTIMIZERS,
    PIPELINE_SCHEDULES,
    POSITIONS,
    ROPE_SCALINGS,
    SCHEDULES,
    Config,
    MeshConfig,
    OptimConfig,
    TrainConfig,
)
from lm.config_numbers import check_numbers
from lm.errors import BadInput

POSITIVE = f"""
    model.vocab_multiple model.d_model model.n_layers model.n_heads model.max_length
    model.ngram_order model.ngram_rows model.vocab_size model.n_kv_heads model.d_head model.d_ff
    model.rope_factor model.rope_base model.rope_original_length model.norm_eps model.init_std
    model.logit_softcap data.length data.packing_block data.workers train.batch_size
    train.accumulate optim.learning_rate optim.clip_norm optim.clip_update optim.spike
    optim.spike_window optim.skip_limit optim.eps optim.muon_learning_rate optim.muon_iterations
    precision.loss_scale precision.loss_scale_steps pipeline.microbatches pipeline.repeats
    checkpoint.every checkpoint.keep checkpoint.stall_seconds eval.every eval.batch_size
    log.every log.profile_from log.profile_steps
    {" ".join(f"train.{budget}" for budget in BUDGETS)}
"""
NOT_NEGATIVE = """
    optim.weight_decay optim.z_loss optim.staleness optim.warmup_steps checkpoint.keep_best
"""
FRACTIONS = """
    data.validation_fraction optim.warmup_fraction optim.decay_fraction optim.final_fraction
"""
# At 1, what is left over would be divided by zero.
BELOW_ONE = "model.dropout optim.b1 optim.b2 optim.ema_decay optim.muon_momentum"
RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (POSITIVE, lambda x: x > 0, "be greater than 0"),
    (NOT_NEGATIVE, lambda x: x >= 0, "be 0 or greater"),
    (FRACTIONS, lambda x: 0 <= x <= 1, "lie between 0 and 1"),
    (BELOW_ONE, lambda x: 0 <= x < 1, "be at least 0 and below 1"),
)
CHOICES: Mapping[str, Collection[str]] = {
    "model.ffn": FFNS,
    "model.norm": NORMS,
    "model.norm_position": NORM_POSITIONS,
    "model.position": POSITIONS,
    "model.rope_scaling": ROPE_SCALINGS,
    "model.attention": ("blocked", "plain", *FUSED_ATTENTION),
    "optim.optimizer": OPTIMIZERS,
    "optim.schedule": SCHEDULES,
    "optim.on_nonfinite": ("stop", "skip"),
    "optim.on_spike": ("stop", "skip"),
    "precision.compute": COMPUTE,
    "precision.matmul": MATMULS,
    "precision.reduce": ("float32", "bfloat16"),
    "data.packing": ("concatenate", "best_fit"),
    "pipeline.schedule": PIPELINE_SCHEDULES,
    "train.batch_growth_lr": ("sqrt", "linear", "constant"),
}


def check(c: Config) -> None:
    """Raises BadInput for the first rule that a config breaks."""
    check_numbers(c)
    for keys, holds, words in RANGES:
        for key in keys.split():
            value = _value(c, key)
            if value is not None and not holds(value):
                raise BadInput(f"{key} is {value}: it must {words}")
    for key, options in CHOICES.items():
        value = _value(c, key)
        if value not in options:
            near = get_close_matches(value, options, 1, 0.5)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise BadInput(f"{key} is {value!r}{hint}: choose one of {', '.join(options)}")
    _check_model(c)
    _check_train(c.train)
    _check_optim(c.optim)
    _check_start(c)
    _check_mesh(c.mesh)
    check_axes(c, c.mesh.model, c.mesh.pipe)


def _value(c: Config, key: str) -> Any:
    section, field = key.split(".")
    return getattr(getattr(c, section), field)


def _check_model(c: Config) -> None:
    m = c.model
    if m.d_head is None and m.d_model % m.n_heads:
        raise BadInput(
            f"model.d_model {m.d_model} is not divisible by model.n_heads {m.n_heads}: "
            "change one of them or set model.d_head"
        )
    if m.n_kv_heads and m.n_heads % m.n_kv_heads:
        raise BadInput(
            f"model.n_heads {m.n_heads} is not divisible by model.n_kv_heads "
            f"{m.n_kv_heads}: change one of them"
        )
    if m.ngram_order > m.max_length:
        raise BadInput(
            f"model.ngram_order {m.ngram_order} is more than the model.max_length {m.max_length} "
            "tokens that a sequence has: lower it"
        )
    d_head = m.d_head or m.d_model // m.n_heads
    if m.position == "rope" and d_head % 2:
        raise BadInput(
            f"the head width {d_head} is odd, and rotary positions turn pairs: "
            "set model.d_head to an even number"
        )
    if m.position == "sinusoidal" and m.d_model % 2:
        raise BadInput(f"model.d_model {m.d_model} is odd, and sinusoidal positions come in pairs")
    if c.length > m.max_length:
        raise BadInput(
            f"data.length {c.length} is longer than model.max_length {m.max_length}: "
            "raise model.max_length or shorten the sequences"
        )


def _check_train(t: TrainConfig) -> None:
    if t.batch_size % t.accumulate:
        raise BadInput(
            f"train.batch_size {t.batch_size} is not divisible by train.accumulate "
            f"{t.accumulate}: change one of them"
        )
    set_budgets = [b for b in BUDGETS if getattr(t, b) is not None]
    if len(set_budgets) != 1:
        found = " and ".join(f"train.{b}" for b in set_budgets) or "none of them"
        raise BadInput(
            f"exactly one budget is needed of {', '.join('train.' + b for b in BUDGETS)}"
            f": {found} is set"
        )
    last = (0, t.batch_size)
    for entry in t.batch_growth:
        if not (
            isinstance(entry, tuple)
            and len(entry) == 2
            and all(isinstance(v, int | float) and float(v).is_integer() for v in entry)
        ):
            raise BadInput(
                f"train.batch_growth holds {entry!r}: each entry is a pair "
                "(n_tokens, batch_size) of whole numbers"
            )
        if entry[0] <= last[0] or entry[1] <= last[1] or entry[1] % t.accumulate:
            raise BadInput(
                f"train.batch_growth {entry} after {last}: tokens and batch sizes must "
                f"grow, in multiples of train.accumulate {t.accumulate}"
            )
        last = entry


def _check_optim(o: OptimConfig) -> None:
    if o.keep_trunk and o.schedule != "wsd":
        raise BadInput(f"optim.keep_trunk with optim.schedule {o.schedule!r}: only wsd has a trunk")
    for path in o.no_decay:
        if not isinstance(path, str):
            raise BadInput(f"optim.no_decay holds {path!r}: each entry is a path of parameters")
    for entry in o.learning_rate_factors:
        pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        if not pair or not isinstance(entry[1], int | float) or entry[1] < 0:
            raise BadInput(
                f"optim.learning_rate_factors holds {entry!r}: each entry is a pair "
                "(path, factor), the factor 0 or greater"
            )
    if o.schedule == "wsd" and o.warmup_steps is None and o.warmup_fraction + o.decay_fraction > 1:
        raise BadInput(
            f"optim.warmup_fraction {o.warmup_fraction} and optim.decay_fraction "
            f"{o.decay_fraction} overlap: together they may be at most 1"
        )


def _check_start(c: Config) -> None:
    if not c.checkpoint.start_from and (c.checkpoint.start_grown or c.checkpoint.start_cast):
        raise BadInput("checkpoint.start_grown and start_cast need checkpoint.start_from: set it")


def _check_mesh(mesh: MeshConfig) -> None:
    if [mesh.data, mesh.model, mesh.pipe].count(-1) > 1:
        raise BadInput("mesh.data, mesh.model and mesh.pipe: only one may be -1")
    for axis in ("data", "model", "pipe"):
        size = getattr(mesh, axis)
        if size == 0 or size < -1:
            raise BadInput(
                f"mesh.{axis} is {size}: it must be a positive number, or -1 for the "
                "devices that are left"
            )


def check_axes(c: Config, model_size: int, stages: int) -> None:
    """Raises BadInput for settings that these axes do not allow: the config's, and once the devices
    are known those of the mesh, where an axis of -1 has its number."""
    p = c.pipeline
    if (p.repeats > 1) != (p.schedule == "interleaved"):
        raise BadInput(
            f"pipeline.repeats {p.repeats} with pipeline.schedule {p.schedule!r}: the interleaved "
            "schedule has 2 or more groups of layers a stage, every other one has 1"
        )
    if c.model.n_layers % (stages * p.repeats):
        raise BadInput(
            f"model.n_layers {c.model.n_layers} is not divisible by mesh.pipe {stages} times "
            f"pipeline.repeats {p.repeats}: change one of them"
        )
    if c.train.reproducible and (stages > 1 or model_size > 1 or c.train.accumulate > 1):
        raise BadInput(
            f"train.reproducible adds up rows alone: mesh.pipe {stages}, mesh.model {model_size} "
            f"and train.accumulate {c.train.accumulate} must be 1"
        )
    if c.train.reproducible and c.precision.reduce != "float32":
        raise BadInput(
            f"train.reproducible adds up in float32, and precision.reduce is {c.precision.reduce}: "
            "set it to float32"
        )
    if c.train.reproducible and c.log.layer_norms:
        raise BadInput("log.layer_norms cannot be had with train.reproducible: set one to false")
    if stages > 1 and c.train.accumulate > 1:
        raise BadInput(
            f"train.accumulate {c.train.accumulate} with mesh.pipe {stages}: a pipeline adds up "
            "pipeline.microbatches, set that instead"
        )
