"""The suite's machine: JAX on the CPU as 8 simulated devices, compiled programs kept between runs.

Tests compile far longer than they run, so in this process LLVM does not optimise (a fifth of the
compile time); nor in commands of sweeps and of several processes. Others that tests start compile
as users' do. What is not excused below is an error, warnings too. Tests marked `bench` are long and
run only by `make bench`; those marked `layouts` are the rest of the product of layouts, run by
`make test-layouts`.
"""

import os
import socket
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

HERE = ("127.0.0.1", "::1", "localhost")
_connect = socket.socket.connect


def connect(self: socket.socket, address) -> None:
    """Opens no connection to anything but this machine, whatever a library would like to ask."""
    if isinstance(address, tuple) and isinstance(address[0], str) and address[0] not in HERE:
        raise ConnectionRefusedError(f"tests stay on this machine: {address}")
    _connect(self, address)


socket.socket.connect = connect  # type: ignore[method-assign]

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


@pytest.fixture(scope="module")
def store(request):
    """A bucket in a stand-in server on this machine, for s3:// or, where a test asks so, for gs://;
    returns its file system."""
    with pytest.MonkeyPatch.context() as patch:
        yield from (_gs if getattr(request, "param", "s3") == "gs" else _s3)(patch)


def _s3(patch: pytest.MonkeyPatch):
    s3fs, server = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        patch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # of a server before this one
    fs = s3fs.S3FileSystem()
    if not fs.exists("bucket"):
        fs.mkdir("bucket")
    yield fs
    running.stop()


def _gs(patch: pytest.MonkeyPatch):
    # Read at the import: without them it looks for credentials all over the network, for minutes.
    patch.setenv("NO_GCE_CHECK", "true")
    patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    gcsfs = pytest.importorskip("gcsfs")
    server = pytest.importorskip("gcp_storage_emulator.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    running = server.create_server(host, port, in_memory=True, default_bucket="bucket")
    running.start()
    patch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}:{port}")
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield gcsfs.GCSFileSystem()
    running.stop()
