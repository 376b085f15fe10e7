"""The settings of a run: typed fields with their defaults, and the checks between them.

Config files hold an ml_collections ConfigDict; `freeze` turns it once into the frozen dataclasses
that the library reads. No default lives anywhere else.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from lm import typed
from lm.errors import BadInput

FFNS = ("swiglu", "geglu", "reglu", "glu", "bilinear", "relu", "gelu", "swish")
GATED_FFNS = FFNS[:5]
OPTIMIZERS = ("adamw", "adafactor", "lion", "muon", "sgd")
COMPUTE = ("float32", "bfloat16", "float16", "float64")
PIPELINE_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
FUSED_ATTENTION = {"splash": "tpu", "cudnn": "gpu"}  # kernel -> platform it runs on
BUDGETS = ("steps", "n_tokens", "flops", "tokens_per_param")


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int | None = None  # none: the tokenizer's
    vocab_multiple: int = 1  # embedding rows are padded to a multiple; padding is masked
    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int | None = None  # none: n_heads; 1 is multi-query
    d_head: int | None = None  # none: d_model / n_heads
    d_ff: int | None = None  # the literal width; none: 4 d, or 8 d / 3 for a GLU
    ffn: str = "swiglu"
    swish_c: float = 1.0  # swish(x) = x sigmoid(c x)
    use_bias: bool = False  # in norms, QKV, output and FFN
    norm: str = "rmsnorm"
    norm_position: str = "pre"
    norm_eps: float = 1e-5
    qk_norm: bool = False
    position: str = "rope"
    rope_base: float = 10000.0
    rope_scaling: str = "none"  # linear, ntk, yarn
    rope_factor: float = 1.0  # how many times longer than rope_original_length
    rope_original_length: int | None = None  # none: max_length / rope_factor
    tie_embeddings: bool = True
    max_length: int = 256
    dropout: float = 0.0
    logit_softcap: float | None = None  # logits become softcap tanh(logits / softcap)
    init_std: float = 0.02  # of embeddings and matrices; residual outputs get / sqrt(2 layers)
    attention: str = "blocked"  # blocked, plain: anywhere; splash: TPU; cudnn: NVIDIA GPU
    scan_layers: bool = False  # one compiled layer looped over, instead of every layer unrolled
    remat: bool = False  # recompute each layer in the backward pass

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def head_dim(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def gated(self) -> bool:
        return self.ffn in GATED_FFNS

    @property
    def ff_dim(self) -> int:
        """Width of the FFN: a GLU has three matrices, so 2/3 of a plain one's width."""
        return self.d_ff or (round(self.d_model / 3) * 8 if self.gated else 4 * self.d_model)

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding; needs vocab_size."""
        assert self.vocab_size is not None
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


@dataclass(frozen=True)
class DataConfig:
    source: str = "python_library"
    path: str | None = None  # a glob of text, JSONL or Parquet; a folder or glob of token files
    tokenizer: str = "bytes"  # bytes, characters, or a tokenizer.json; token folders bring theirs
    validation_fraction: float = 0.1  # of the text, its end; of documents, a random share
    validation_path: str | None = None  # token files to hold out instead, source=tokens
    text_field: str = "text"  # of JSONL lines, Parquet rows, Hugging Face data sets
    subset: str | None = None  # configuration of a Hugging Face data set, source=huggingface
    split: str = "train"  # of it; validation_fraction of its documents is held out
    separator: str | None = None  # what stands between documents of a text file; none: it is one
    length: int | None = None  # tokens a sequence; none: model.max_length
    packing: str = "concatenate"  # or best_fit: whole documents in a row, kept apart
    packing_block: int = 65_536  # documents packed among themselves
    mixture: tuple = ()  # ((path, weight), ...): files or token folders, source=mixture
    workers: int = 1  # threads that make batches ahead
    markov_symbols: int = 64
    markov_order: int = 1
    markov_validation_tokens: int = 1_048_576


@dataclass(frozen=True)
class TrainConfig:
    batch_size: int = 16  # sequences per optimizer step, over all devices
    accumulate: int = 1  # micro-batches a step
    # The same bits on 1, 2, 4 or 8 data devices, at the cost of a whole gradient on each.
    reproducible: bool = False
    steps: int | None = None
    n_tokens: int | None = None
    flops: float | None = None
    tokens_per_param: float | None = None
    # ((n_tokens, batch_size), ...): from that many trained tokens on, that batch size.
    batch_growth: tuple = ()
    # What the learning rate is multiplied by when the batch grows k times: k**0.5, k or 1.
    batch_growth_lr: str = "sqrt"


@dataclass(frozen=True)
class OptimConfig:
    optimizer: str = "adamw"
    learning_rate: float = 1e-3  # the peak
    schedule: str = "cosine"
    warmup_fraction: float = 0.02  # of the steps, rounded up
    warmup_steps: int | None = None  # instead of a fraction
    decay_fraction: float = 0.2  # of the steps, wsd only
    final_fraction: float = 0.1  # of the peak, at the last step
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0  # of all gradients together
    # Root mean square that one matrix's update may have, before the learning rate; adafactor: 1.
    clip_update: float | None = None
    no_decay: tuple = ()  # paths left out of weight decay, such as "blocks/ffn/*"
    learning_rate_factors: tuple = ()  # (path, factor) pairs: rates of groups of parameters
    muon_learning_rate: float = 0.02  # of the hidden matrices, optimizer=muon
    muon_momentum: float = 0.95
    muon_iterations: int = 5  # Newton-Schulz steps a matrix is orthogonalised with
    z_loss: float = 0.0  # weight of the mean of logsumexp(logits)^2 in training
    ema_decay: float | None = None  # of the average of the weights that is then evaluated
    on_nonfinite: str = "stop"  # or skip: leave out a step whose loss or gradient is not finite
    # A spike is a loss or gradient norm so many deviations above its mean over spike_window steps.
    spike: float | None = None
    spike_window: int = 128
    on_spike: str = "skip"
    skip_limit: int = 100  # so many steps left out in a row end the run
    keep_trunk: bool = False  # wsd: a checkpoint where the decay begins, for runs to branch from
    staleness: int = 0  # steps by which gradients are late


@dataclass(frozen=True)
class PrecisionConfig:
    compute: str = "float32"  # bfloat16, float16; float64 for checks
    reduce: str = "float32"  # dtype in which gradients cross devices
    # Linear maps of layers: those of the compute dtype, or float8 (e4m3, gradients e5m2).
    matmul: str = "compute"
    loss_scale: float = 32768.0  # the first one, compute=float16
    loss_scale_steps: int = 2000  # finite steps in a row after which it is doubled

    @property
    def matmul_dtype(self) -> str:
        """What most products multiply: the peak that speed is measured by."""
        return self.compute if self.matmul == "compute" else self.matmul


@dataclass(frozen=True)
class MeshConfig:
    data: int = 1  # one of the three may be -1: the devices that are left
    model: int = 1
    pipe: int = 1
    fully_sharded: bool = True  # parameters and optimizer state sharded over data


@dataclass(frozen=True)
class PipelineConfig:
    schedule: str = "1f1b"
    microbatches: int = 1  # of each device's rows, every step
    repeats: int = 1  # groups of layers a stage, schedule=interleaved
    recompute: bool = True  # keep layers' inputs only, and compute each again in its backward


@dataclass(frozen=True)
class CheckpointConfig:
    every: int | None = 500  # steps; none: only at the end
    keep: int = 2  # the newest
    keep_best: int = 0  # and those of lowest eval loss, where one was evaluated and saved
    stall_seconds: float = 1800  # a save that takes longer ends the run
    start_from: str | None = None  # a work folder whose newest parameters are the first ones here
    start_grown: bool = False  # where arrays may be new here, or larger
    start_cast: bool = False  # where dtypes may differ


@dataclass(frozen=True)
class EvalConfig:
    every: int | None = None  # steps; none: only at the end
    batch_size: int | None = None  # none: train.batch_size


@dataclass(frozen=True)
class LogConfig:
    every: int = 10
    layer_norms: bool = False  # of every layer's gradient, and of its output (root mean square)
    tensorboard: bool = False  # event files in the work folder
    wandb: str | None = None  # a project of Weights & Biases
    profile_from: int | None = None  # the first of the steps whose profile is kept
    profile_steps: int = 3


@dataclass(frozen=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    seed: int = 0

    @property
    def length(self) -> int:
        """Tokens a training sequence."""
        return self.data.length or self.model.max_length


def default_config():
    """Returns a complete, locked ConfigDict with every default above."""
    from ml_collections import ConfigDict

    # Types are checked by `freeze`, which also accepts 1e6 for an integer and none where optional.
    config = ConfigDict(to_dict(Config()), type_safe=False)
    return config.lock()


def to_dict(config: Config) -> dict[str, Any]:
    """Returns the config as nested dicts of plain values, ready for JSON."""
    return {k: _plain(v) for k, v in dataclasses.asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def freeze(config: Mapping[str, Any], where: str = "the config") -> Config:
    """Returns the checked, frozen Config; raises BadInput naming the field."""
    frozen: Config = typed.build(Config, config, where)
    _check(frozen)
    return frozen


def field_type(key: str) -> Any:
    """Returns the type of a dotted field; raises BadInput with the nearest name for a typo."""
    return typed.field_type(Config, key)


def _choice(key: str, value: str, options) -> None:
    if value not in options:
        near = get_close_matches(value, options, 1, 0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadInput(f"{key} is {value!r}{hint}: choose one of {', '.join(options)}")


def _check(c: Config) -> None:
    m, t, o = c.model, c.train, c.optim
    positive = {
        "model.vocab_multiple": m.vocab_multiple,
        "model.d_model": m.d_model,
        "model.n_layers": m.n_layers,
        "model.n_heads": m.n_heads,
        "model.max_length": m.max_length,
        "model.vocab_size": m.vocab_size,
        "model.n_kv_heads": m.n_kv_heads,
        "model.d_head": m.d_head,
        "model.d_ff": m.d_ff,
        "data.length": c.data.length,
        "data.packing_block": c.data.packing_block,
        "data.workers": c.data.workers,
        "model.rope_factor": m.rope_factor,
        "model.rope_base": m.rope_base,
        "model.rope_original_length": m.rope_original_length,
        "model.norm_eps": m.norm_eps,
        "model.init_std": m.init_std,
        "train.batch_size": t.batch_size,
        "train.accumulate": t.accumulate,
        **{f"train.{b}": getattr(t, b) for b in BUDGETS},
        "optim.learning_rate": o.learning_rate,
        "optim.clip_norm": o.clip_norm,
        "optim.clip_update": o.clip_update,
        "optim.spike": o.spike,
        "optim.spike_window": o.spike_window,
        "optim.skip_limit": o.skip_limit,
        "model.logit_softcap": m.logit_softcap,
        "precision.loss_scale": c.precision.loss_scale,
        "precision.loss_scale_steps": c.precision.loss_scale_steps,
        "optim.eps": o.eps,
        "optim.muon_learning_rate": o.muon_learning_rate,
        "checkpoint.every": c.checkpoint.every,
        "checkpoint.keep": c.checkpoint.keep,
        "checkpoint.stall_seconds": c.checkpoint.stall_seconds,
        "eval.every": c.eval.every,
        "eval.batch_size": c.eval.batch_size,
        "log.every": c.log.every,
        "log.profile_from": c.log.profile_from,
        "log.profile_steps": c.log.profile_steps,
        "optim.muon_iterations": o.muon_iterations,
        "pipeline.microbatches": c.pipeline.microbatches,
        "pipeline.repeats": c.pipeline.repeats,
    }
    for key, value in positive.items():
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"{key} is {value}: it must be greater than 0")
    not_negative = {
        "optim.weight_decay": o.weight_decay,
        "optim.z_loss": o.z_loss,
        "optim.staleness": o.staleness,
        "optim.warmup_steps": o.warmup_steps or 0,
    }
    for key, value in not_negative.items():
        if not 0 <= value < float("inf"):
            raise BadInput(f"{key} is {value}: it must be 0 or greater")
    if c.checkpoint.keep_best < 0:
        raise BadInput(f"checkpoint.keep_best is {c.checkpoint.keep_best}: it must be 0 or greater")
    if not c.checkpoint.start_from and (c.checkpoint.start_grown or c.checkpoint.start_cast):
        raise BadInput("checkpoint.start_grown and start_cast need checkpoint.start_from: set it")
    fractions = {
        "data.validation_fraction": c.data.validation_fraction,
        "optim.warmup_fraction": o.warmup_fraction,
        "optim.decay_fraction": o.decay_fraction,
        "optim.final_fraction": o.final_fraction,
    }
    for key, value in fractions.items():
        if not 0 <= value <= 1:
            raise BadInput(f"{key} is {value}: it must lie between 0 and 1")
    below_one = {  # at 1, what is left over would be divided by zero
        "model.dropout": m.dropout,
        "optim.b1": o.b1,
        "optim.b2": o.b2,
        "optim.ema_decay": o.ema_decay or 0,
        "optim.muon_momentum": o.muon_momentum,
    }
    for key, value in below_one.items():
        if not 0 <= value < 1:
            raise BadInput(f"{key} is {value}: it must be at least 0 and below 1")
    _choice("model.ffn", m.ffn, FFNS)
    _choice("model.norm", m.norm, ("rmsnorm", "layernorm"))
    _choice("model.norm_position", m.norm_position, ("pre", "post"))
    _choice("model.position", m.position, ("rope", "sinusoidal", "learned", "none"))
    _choice("model.rope_scaling", m.rope_scaling, ("none", "linear", "ntk", "yarn"))
    _choice("model.attention", m.attention, ("blocked", "plain", *FUSED_ATTENTION))
    _choice("optim.optimizer", o.optimizer, OPTIMIZERS)
    _choice("optim.schedule", o.schedule, ("cosine", "wsd", "rsqrt", "linear", "constant"))
    _choice("optim.on_nonfinite", o.on_nonfinite, ("stop", "skip"))
    _choice("optim.on_spike", o.on_spike, ("stop", "skip"))
    _choice("precision.compute", c.precision.compute, COMPUTE)
    _choice("precision.matmul", c.precision.matmul, ("compute", "float8"))
    _choice("precision.reduce", c.precision.reduce, ("float32", "bfloat16"))
    _choice("data.packing", c.data.packing, ("concatenate", "best_fit"))
    _choice("pipeline.schedule", c.pipeline.schedule, PIPELINE_SCHEDULES)
    _choice("train.batch_growth_lr", t.batch_growth_lr, ("sqrt", "linear", "constant"))
    _check_optim(o)
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
    if o.schedule == "wsd" and o.warmup_steps is None and o.warmup_fraction + o.decay_fraction > 1:
        raise BadInput(
            f"optim.warmup_fraction {o.warmup_fraction} and optim.decay_fraction "
            f"{o.decay_fraction} overlap: together they may be at most 1"
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
    if [c.mesh.data, c.mesh.model, c.mesh.pipe].count(-1) > 1:
        raise BadInput("mesh.data, mesh.model and mesh.pipe: only one may be -1")
    for axis in ("data", "model", "pipe"):
        size = getattr(c.mesh, axis)
        if size == 0 or size < -1:
            raise BadInput(
                f"mesh.{axis} is {size}: it must be a positive number, or -1 for the "
                "devices that are left"
            )
    _check_pipeline(c)


def _check_optim(o: OptimConfig) -> None:
    if o.keep_trunk and o.schedule != "wsd":
        raise BadInput(f"optim.keep_trunk with optim.schedule {o.schedule!r}: only wsd has a trunk")
    for path in o.no_decay:
        if not isinstance(path, str):
            raise BadInput(f"optim.no_decay holds {path!r}: each entry is a path of parameters")
    for entry in o.learning_rate_factors:
        pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        if not pair or not isinstance(entry[1], int | float) or not 0 <= entry[1] < float("inf"):
            raise BadInput(
                f"optim.learning_rate_factors holds {entry!r}: each entry is a pair "
                "(path, factor), the factor 0 or greater"
            )


def _check_pipeline(c: Config) -> None:
    p, stages = c.pipeline, c.mesh.pipe
    if (p.repeats > 1) != (p.schedule == "interleaved"):
        raise BadInput(
            f"pipeline.repeats {p.repeats} with pipeline.schedule {p.schedule!r}: the interleaved "
            "schedule has 2 or more groups of layers a stage, every other one has 1"
        )
    if stages > 1 and c.model.n_layers % (stages * p.repeats):
        raise BadInput(
            f"model.n_layers {c.model.n_layers} is not divisible by mesh.pipe {stages} times "
            f"pipeline.repeats {p.repeats}: change one of them"
        )
    if c.train.reproducible and (stages > 1 or c.mesh.model > 1 or c.train.accumulate > 1):
        raise BadInput(
            f"train.reproducible adds up rows alone: mesh.pipe {stages}, mesh.model {c.mesh.model} "
            f"and train.accumulate {c.train.accumulate} must be 1"
        )
    if c.train.reproducible and c.log.layer_norms:
        raise BadInput("log.layer_norms cannot be had with train.reproducible: set one to false")
    if stages > 1 and c.train.accumulate > 1:
        raise BadInput(
            f"train.accumulate {c.train.accumulate} with mesh.pipe {stages}: a pipeline adds up "
            "pipeline.microbatches, set that instead"
        )
