"""What XLA has to know of a GPU to compile for it without one: a target configuration.

The numbers are those a driver reports for the card (CUDA's cudaDeviceProp), from NVIDIA's
architecture papers: A100 (Ampere, table 4), H100 (Hopper, table 3), H200 (the same chip with more
memory).
"""

from dataclasses import dataclass

from lm.chips import Chip


@dataclass(frozen=True)
class Target:
    multiprocessors: int
    major: int  # of the compute capability, minor 0
    shared_kib: int  # shared memory of a multiprocessor; one block may use 1 KiB less
    l2_mib: int
    clock_ghz: float


AMPERE, HOPPER = (8, 164, 40), (9, 228, 50)

TARGETS = {
    "a100": Target(108, *AMPERE, 1.41),
    "a100_40gb": Target(108, *AMPERE, 1.41),
    "h100": Target(132, *HOPPER, 1.98),
    "h100_pcie": Target(114, *HOPPER, 1.755),
    "h200": Target(132, *HOPPER, 1.98),
}


def target_config(chip: Chip) -> str:
    """Returns the text of a GpuTargetConfigProto."""
    t = TARGETS[chip.name]
    return f"""
      gpu_device_info {{
        threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
        shared_memory_per_block: {48 * 1024}
        shared_memory_per_core: {t.shared_kib * 1024}
        shared_memory_per_block_optin: {(t.shared_kib - 1) * 1024}
        core_count: {t.multiprocessors}  fpus_per_core: {64 if t.major == 8 else 128}
        block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
        registers_per_core_limit: 65536  registers_per_block_limit: 65536
        memory_bandwidth: {int(chip.hbm_bandwidth)}
        device_memory_size: {int(chip.hbm_limit)}
        l2_cache_size: {t.l2_mib * 2**20}
        clock_rate_ghz: {t.clock_ghz}
        cuda_compute_capability {{ major: {t.major} minor: 0 }}
      }}
      platform_name: "CUDA"
      dnn_version_info {{ major: 9 minor: 8 }}
      runtime_version {{ major: 12 minor: 9 }}
      device_description_str: "{chip.kinds[0]}"
    """
