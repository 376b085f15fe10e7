"""Accelerators: peaks, memory, links and power. One table, each row with its sources.

Numbers are one chip's as its maker publishes them: dense products (no sparsity), decimal units
(1 GB/s is 1e9 bytes/s), links in one direction. None is a number that is not published: whoever
needs it says so instead of guessing. Imports nothing.

float32 stands for what a product of float32 arrays runs at in JAX's default precision: bfloat16
passes on a TPU, TensorFloat-32 on a GPU (jax.lax.Precision.DEFAULT).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Chip:
    """One accelerator. `name` is what topologies call it, `kinds` what jax calls its devices."""

    name: str
    kinds: tuple[str, ...]
    peaks: dict[str, float]  # FLOP/s by dtype of a product's inputs
    hbm_bandwidth: float  # bytes/s
    # Bytes a program may use on one device: what libtpu 0.0.52 enforces. GPUs: what is sold; XLA
    # compiles more than fits.
    hbm_limit: float
    link_bandwidth: float  # bytes/s of a link to one neighbour; GPUs: of all links to the switch
    links: int  # to neighbours: 4 in a 2-D torus, 6 in a 3-D one; 1: to a switch
    # A dimension closes into a ring when it is a multiple of this many chips; 0: no torus.
    ring: int
    slow_bandwidth: float | None  # bytes/s of a chip into the data-centre network
    watts: float | None  # of the chip alone, without host, network and cooling
    watts_are: str
    sources: tuple[str, ...]
    devices: int = 1  # devices that jax shows for each chip
    # Options under which libtpu shows an absent chip the way a present one is shown.
    options: dict[str, str] = field(default_factory=dict)


def _tpu(bf16: float, **more: float) -> dict[str, float]:
    return {"bfloat16": bf16 * T, "float32": bf16 * T} | {k: v * T for k, v in more.items()}


def _gpu(half: float, tf32: float, byte: float) -> dict[str, float]:
    peaks = {"bfloat16": half, "float16": half, "float32": tf32, "float8": byte, "int8": byte}
    return {dtype: peak * T for dtype, peak in peaks.items() if peak}


GIB, T = 2.0**30, 1e12
TDP, MEAN, NONE = "thermal design power", "measured mean under load", "not published"
TPU_DOCS = "https://docs.cloud.google.com/tpu/docs/"
NVIDIA = "https://resources.nvidia.com/en-us-tensor-core/"
JOUPPI_2020 = "https://doi.org/10.1145/3360307"  # table 3: peaks, HBM, links, power of v2 and v3
JOUPPI_2023 = "https://arxiv.org/abs/2304.01433"  # table 4: links and power of v3 and v4
SCALING_BOOK = "https://jax-ml.github.io/scaling-book/tpus/"  # int8 of v5p
DGX = "https://docs.nvidia.com/dgx/"  # one port of 400 (A100: 200) Gb/s for each GPU

CHIPS = (
    Chip("v2", ("TPU v2",), _tpu(46), 0.7e12, 7.48 * GIB, 62e9, 4, 16, None, 280, TDP,
         (JOUPPI_2020,), devices=2),
    Chip("v3", ("TPU v3",), _tpu(123), 0.9e12, 15.48 * GIB, 70e9, 4, 32, None, 220, MEAN,
         (TPU_DOCS + "v3", JOUPPI_2020, JOUPPI_2023), devices=2),
    Chip("v4", ("TPU v4",), _tpu(275, int8=275), 1.2e12, 30.75 * GIB, 50e9, 6, 4, None, 170, MEAN,
         (TPU_DOCS + "v4", JOUPPI_2023), options={"chip_config_name": "megacore"}),
    Chip("v5e", ("TPU v5 lite", "TPU v5e"), _tpu(197, int8=393), 0.819e12, 15.75 * GIB, 50e9, 4, 16,
         3.125e9, None, NONE, (TPU_DOCS + "v5e",)),
    Chip("v5p", ("TPU v5", "TPU v5p"), _tpu(459, int8=918, float8=459), 2.765e12, 95.73 * GIB,
         100e9, 6, 4, 6.25e9, None, NONE, (TPU_DOCS + "v5p", SCALING_BOOK)),
    Chip("v6e", ("TPU v6 lite", "TPU v6e"), _tpu(918, int8=1836, float8=918), 1.638e12,
         31.24 * GIB, 100e9, 4, 16, 12.5e9, None, NONE, (TPU_DOCS + "v6e", TPU_DOCS + "tpu7x")),
    Chip("tpu7x", ("TPU7x", "TPU7"), _tpu(2307, float8=4614), 7.37e12, 94.74 * GIB, 100e9, 6, 4,
         12.5e9, None, NONE, (TPU_DOCS + "tpu7x",), devices=2),
    Chip("a100", ("NVIDIA A100-SXM4-80GB",), _gpu(312, 156, 0) | {"int8": 624 * T}, 2.039e12, 80e9,
         300e9, 1, 0, 25e9, 400, TDP, (NVIDIA + "nvidia-a100", DGX)),
    Chip("a100_40gb", ("NVIDIA A100-SXM4-40GB",), _gpu(312, 156, 0) | {"int8": 624 * T}, 1.555e12,
         40e9, 300e9, 1, 0, 25e9, 400, TDP, (NVIDIA + "nvidia-a100", DGX)),
    Chip("h100", ("NVIDIA H100 80GB HBM3",), _gpu(989, 494, 1979), 3.35e12, 80e9, 450e9, 1, 0, 50e9,
         700, TDP, (NVIDIA + "nvidia-tensor-core-gpu-datasheet", DGX)),
    Chip("h100_pcie", ("NVIDIA H100 PCIe",), _gpu(756, 378, 1513), 2.0e12, 80e9, 64e9, 1, 0, None,
         350, TDP, (NVIDIA + "nvidia-h100-pcie-product-brief",)),
    Chip("h200", ("NVIDIA H200",), _gpu(989, 494, 1979), 4.8e12, 141e9, 450e9, 1, 0, 50e9, 700, TDP,
         (NVIDIA + "hpc-datasheet-sc23-h200", DGX)),
)  # fmt: skip


def of_kind(device_kind: str) -> Chip | None:
    """Returns the chip of a jax device_kind, or None where it is not in the table.

    Names are compared whole: an H100 on a PCIe card is not the H100 whose name begins the same.
    """
    return next((chip for chip in CHIPS if device_kind in chip.kinds), None)


def named(name: str) -> Chip | None:
    """Returns the chip that topologies call by this name, or None."""
    return next((chip for chip in CHIPS if chip.name == name), None)


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Returns the dense peak of one device in FLOP/s, or None where it is not known."""
    chip = of_kind(device_kind)
    peak = chip.peaks.get(dtype) if chip else None
    return peak / chip.devices if chip and peak else None
