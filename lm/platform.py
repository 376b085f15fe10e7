"""What this machine computes with: settled before JAX is imported. Imports nothing heavy."""

import os
import signal
from pathlib import Path

GOOGLE_PCI_VENDOR = "0x1ae0"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # save and stop: what schedulers send


def prepare(compile_cache: bool = True) -> None:
    """Keeps JAX from looking for a TPU that is not there, and keeps compiled programs for reuse.

    With libtpu installed and no TPU, JAX would spend seconds and print warnings before falling back
    to the CPU. What the environment already says is left alone.
    """
    if "JAX_PLATFORMS" not in os.environ and not _has_tpu() and not Path("/dev/nvidiactl").exists():
        os.environ["JAX_PLATFORMS"] = "cpu"
    if compile_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(home, "isoflop", "xla")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _has_tpu() -> bool:
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == GOOGLE_PCI_VENDOR:
                return True
        except OSError:
            continue
    return False
