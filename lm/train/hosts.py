"""Which process of a group is slow. Steps take all of them equally long, since each waits for the
slowest; so a process is judged by the time it takes for the same small work alone."""

import socket
import time

import jax
import jax.numpy as jnp
import numpy as np

from lm import group
from lm.progress import say, warn

FACTOR = 1.3  # above the median
IN_A_ROW = 3  # looks; one is noise
SIZE, PRODUCTS, REPEATS = 512, 8, 3  # products of matrices, of which the fastest run counts


class Hosts:
    """Looked at now and then by every process at the same point. Free for a process alone."""

    def __init__(self) -> None:
        self._slow = 0
        if group.size() > 1:
            device = jax.local_devices()[0]
            self._x = jax.device_put(jnp.ones((SIZE, SIZE), jnp.float32) / SIZE, device)
            work = lambda x: jax.lax.fori_loop(0, PRODUCTS, lambda _, y: y @ x, x)
            self._work = jax.jit(work).lower(self._x).compile()

    def look(self) -> None:
        """Says how far the processes are apart; names this host, once, when it was slow several
        times in a row."""
        if group.size() == 1:
            return
        from jax.experimental import multihost_utils

        own = self._seconds()
        every = multihost_utils.process_allgather(np.float32(own))
        say(f"the same work takes the processes {min(every):.3g} to {max(every):.3g} s")
        times = slowness(own, every)
        self._slow = self._slow + 1 if times > FACTOR else 0
        if self._slow == IN_A_ROW:
            warn(
                f"{socket.gethostname()} (process {group.index()}) is slow: the same work takes it "
                f"{times:.1f} times as long as the median process, and every step waits for it"
            )

    def _seconds(self) -> float:
        found = []
        for _ in range(REPEATS):
            started = time.monotonic()
            jax.block_until_ready(self._work(self._x))
            found.append(time.monotonic() - started)
        return min(found)


def slowness(own: float, every: np.ndarray) -> float:
    """Returns own seconds / the lower median of all processes' (of two: the faster's)."""
    return own / float(np.sort(every)[(len(every) - 1) // 2])
