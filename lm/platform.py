"""What this machine computes with: settled before JAX is imported. Imports nothing heavy."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from platform import machine

from lm import group

GOOGLE_PCI_VENDOR = "0x1ae0"
# XLA's CPU scheduler otherwise runs independent collectives in an order that differs between
# simulated devices or processes, and they wait for each other for ever.
ORDERED = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
X86 = ("x86_64", "AMD64")
# Else LLVM adds up several terms of a sum side by side, and rounds a product and a sum together
# (fused multiply-adds, which AVX has not), where it likes: elsewhere in each of two programs that
# compute the same.
AS_WRITTEN = (
    "--xla_backend_extra_options=-vectorize-loops=false,-vectorize-slp=false",
    *(["--xla_cpu_max_isa=AVX"] if machine() in X86 else []),
)
# How glibc is to keep memory. What XLA takes and gives back in every step comes back in pages of
# 2 MiB instead of 4 KiB, for each of which the kernel interrupts the program: a tenth of a small
# step. And every thread has its own pool, however few processors it may use: in one shared with the
# compiler, a product looks for its scratch memory among that one's scraps.
MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=512"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # save and stop: what schedulers send


def restart_with_memory() -> None:
    """Starts this command again, in this very process, with memory kept as MEMORY says, which
    glibc reads only as a process begins. What GLIBC_TUNABLES says about memory stays as it is."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    glibc = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})
    if sys.platform != "linux" or not glibc or "glibc.malloc." in tunables:
        return
    os.environ["GLIBC_TUNABLES"] = f"{tunables}:{MEMORY}".lstrip(":")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def prepare(compile_cache: bool = True) -> None:
    """Keeps JAX from looking for a TPU that is not there, the collectives of simulated devices and
    of processes in one order, and compiled programs for reuse.

    With libtpu installed and no TPU, JAX would spend seconds and print warnings before falling back
    to the CPU. What the environment already says is left alone.
    """
    if "JAX_PLATFORMS" not in os.environ and not _has_tpu() and not Path("/dev/nvidiactl").exists():
        os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    if _simulates_devices(flags) and ORDERED.split("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ORDERED}".strip()
    if compile_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(home, "isoflop", "xla")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def compile_as_written() -> None:
    """Has this process's XLA add and round as programs are written. Several processes have devices
    by now, which it is too late for."""
    flags = os.environ.get("XLA_FLAGS", "")
    if group.size() == 1:
        missing = [flag for flag in AS_WRITTEN if flag.split("=")[0] not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()


def compiles_as_written() -> bool:
    """Returns whether this process's XLA was told to."""
    return all(flag in os.environ.get("XLA_FLAGS", "") for flag in AS_WRITTEN)


def _simulates_devices(flags: str) -> bool:
    several = os.environ.get("JAX_NUM_CPU_DEVICES", "1") != "1" or group.announced()
    return several or "xla_force_host_platform_device_count" in flags


def _has_tpu() -> bool:
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == GOOGLE_PCI_VENDOR:
                return True
        except OSError:
            continue
    return False


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """A context in which processes are started that never hear a terminal's Ctrl-C, not even while
    they import: it ends this process, which ends them. Here, it is heard when the context ends."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start would end the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # children keep the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def quiet_libraries() -> None:
    """Keeps libraries from logging: what fails is told in one sentence, by who asked for it."""
    from absl import logging

    logging.use_absl_handler()
    logging.set_verbosity(logging.FATAL)
