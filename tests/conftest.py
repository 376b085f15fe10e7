"""The suite's machine: JAX on the CPU as 8 simulated devices, compiled programs kept between runs.

Tests compile far longer than they run, so in this process LLVM does not optimise (a fifth of the
compile time); commands that tests start compile as users' do. What is not excused below is an
error, warnings too. Tests marked `bench` are long and run only by `make bench`; those marked
`layouts` are the rest of the product of layouts, run by `make test-layouts`.
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

from lm.platform import ORDERED  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
_flags = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = f"{_flags or ''} {ORDERED} --xla_backend_optimization_level=0"
jax.devices()  # reads the flags, once for this process
if _flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = _flags

EXCUSED = (
    # orbax and its dependencies use what Python and JAX are retiring
    "ignore::DeprecationWarning:(?!lm|experiments|launch|test_)",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "bench: a long measurement, run by `make bench`")
    config.addinivalue_line("markers", "layouts: one more layout, run by `make test-layouts`")
    config.addinivalue_line("filterwarnings", "error")
    for line in EXCUSED:
        config.addinivalue_line("filterwarnings", line)
