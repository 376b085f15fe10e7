"""The suite's machine: JAX on the CPU as 8 simulated devices, compiled programs kept between runs.

Nothing is a warning: what is not excused below is an error. Tests marked `bench` are long and run
only by `make bench`.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# In the environment, so that commands started by tests have them too; before the import of JAX.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "xla")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

EXCUSED = (
    # orbax and its dependencies use what Python and JAX are retiring
    "ignore::DeprecationWarning:(?!lm|experiments|launch|test_)",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "bench: a long measurement, run by `make bench`")
    config.addinivalue_line("filterwarnings", "error")
    for line in EXCUSED:
        config.addinivalue_line("filterwarnings", line)
