"""Dense matrix-multiply peaks of accelerators, FLOP/s a device, for model FLOPs utilisation.

Sources: cloud.google.com/tpu/docs (v2 to v6e system pages), NVIDIA A100, H100 and H200 data sheets
(dense, without sparsity). A device that is not listed has no stated utilisation.
"""

# jax device_kind prefix -> {compute dtype: FLOP/s}
PEAKS: dict[str, dict[str, float]] = {
    "TPU v2": {"bfloat16": 22.5e12},  # a device is one core of v2 and v3 chips
    "TPU v3": {"bfloat16": 61.5e12},
    "TPU v4": {"bfloat16": 275e12},
    "TPU v5 lite": {"bfloat16": 197e12},
    "TPU v5p": {"bfloat16": 459e12},
    "TPU v5": {"bfloat16": 459e12},
    "TPU v6 lite": {"bfloat16": 918e12},
    "NVIDIA A100": {"bfloat16": 312e12, "float32": 19.5e12},
    "NVIDIA H100": {"bfloat16": 989e12, "float32": 67e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float32": 67e12},
}


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Returns the dense peak of one device in FLOP/s, or None where it is not known."""
    for prefix, peaks in PEAKS.items():  # longer names stand before their prefixes
        if device_kind.startswith(prefix):
            return peaks.get(dtype)
    return None
