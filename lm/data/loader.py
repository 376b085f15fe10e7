"""Batches made ahead by threads, handed out in order."""

import collections
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(
    make: Callable[[int], T], first: int, last: int, workers: int
) -> Generator[T, None, None]:
    """make(first), ..., make(last) in order, the next `workers` of them on threads of their own.

    make must depend on its number alone, so that the order does not depend on the workers. What it
    raises is raised here, at its place in the order.
    """
    with ThreadPoolExecutor(workers) as pool:
        ahead = range(first, min(first + workers, last + 1))
        coming = collections.deque(pool.submit(make, n) for n in ahead)
        for n in range(first, last + 1):
            item = coming.popleft().result()
            if n + workers <= last:
                coming.append(pool.submit(make, n + workers))
            yield item
