"""The settings of a run: typed fields with their defaults. No default lives anywhere else."""

from dataclasses import dataclass, field

FFNS = ("swiglu", "geglu", "reglu", "glu", "bilinear", "relu", "gelu", "swish")
GATED_FFNS = ("swiglu", "geglu", "reglu", "glu", "bilinear")
NORMS = ("rmsnorm", "layernorm")
NORM_POSITIONS = ("pre", "post")
POSITIONS = ("rope", "sinusoidal", "learned", "none")
ROPE_SCALINGS = ("none", "linear", "ntk", "yarn")
OPTIMIZERS = ("adamw", "adafactor", "lion", "muon", "sgd")
SCHEDULES = ("cosine", "wsd", "rsqrt", "linear", "constant")
COMPUTE = ("float32", "bfloat16", "float16", "float64")
MATMULS = ("compute", "float8")
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
    # 2: each pair of tokens adds a row of its own to the embedding, 3: each triple another, ...
    ngram_order: int = 1  # 1: none
    ngram_rows: int = 4096  # of their table; n-grams are hashed into it
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
    # The same bits on any number of data devices that divides the parts of a batch (8 at most), at
    # the cost of whole gradients on each.
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
