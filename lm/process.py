"""Facts about this process: its age and its memory. Imports nothing heavy."""

import os
import resource
import sys
import time

_IMPORTED = time.time()


def age_seconds() -> float:
    """Returns seconds since the operating system started this process (10 ms resolution)."""
    try:
        with open("/proc/self/stat") as f:
            ticks = float(f.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/uptime") as f:
            uptime = float(f.read().split()[0])
    except OSError:  # no /proc: from the import of this module
        return time.time() - _IMPORTED
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory_bytes() -> int:
    """Returns the largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine_memory_bytes() -> int | None:
    """Returns the memory there is for this process: the machine's, or less where its control group
    has a limit (a container); None where the system does not say."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as f:
            limit = f.read().strip()
    except OSError:
        limit = ""
    return min(memory, int(limit)) if limit.isdecimal() else memory
