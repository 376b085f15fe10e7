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
