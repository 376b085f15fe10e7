"""What each process of a group on this machine has of its own: its environment, its processors."""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lm.errors import BadInput

# All start at once here, and the launcher sees which one died: a pause of the machine is no reason.
WAITS = {"ISOFLOP_JOIN_SECONDS": "120", "ISOFLOP_HEARTBEAT_SECONDS": "900"}


class Place(NamedTuple):
    environment: Mapping[str, str]
    cores: Sequence[int] | None  # the processors it may use; None: all


def places(n_processes: int, n_devices: int, n_cores: int | None) -> list[Place]:
    """Returns the places of a group: n_devices simulated devices and n_cores processors each.

    Raises BadInput where there are fewer processors than asked for.
    """
    shares: list[list[int] | None] = [None] * n_processes
    if n_cores:
        have = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if n_processes * n_cores > len(have):
            raise BadInput(
                f"{n_processes} processes with {n_cores} processors each need "
                f"{n_processes * n_cores}, and there are {len(have)} to give: lower --processes or "
                "--cores"
            )
        shares = [have[i * n_cores : (i + 1) * n_cores] for i in range(n_processes)]
    address = f"127.0.0.1:{_free_port()}"
    common = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(n_devices),
        "JAX_NUM_PROCESSES": str(n_processes),
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        **WAITS,
        "PYTHONUNBUFFERED": "1",
    }
    return [Place(common | {"JAX_PROCESS_ID": str(i)}, share) for i, share in enumerate(shares)]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
