"""Ten records: the same order for any number of loader workers and hosts, real processes."""

import json
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lm.config import DataConfig
from lm.data.build import build
from lm.data.inputs import held_out_by, text_digest
from lm.data.loader import prefetch

LENGTH, BATCH, STEPS = 12, 4, 20
ALL = range(STEPS)


def settings(folder: Path, packing: str) -> DataConfig:
    path = str(folder / "records.jsonl")
    return DataConfig(source="files", path=path, validation_fraction=0.3, packing=packing)


def write_records(folder: Path) -> None:
    """Ten records for training and one held out, each one row long."""
    texts = [f"record {i:06d}".encode() for i in range(100)]
    train = [t for t in texts if not held_out_by(text_digest(t), 0.3)][:10]
    held_out = [t for t in texts if held_out_by(text_digest(t), 0.3)][:1]
    lines = [json.dumps({"text": t.decode()}) for t in train + held_out]
    (folder / "records.jsonl").write_text("\n".join(lines))


def rows_of_host(
    folder: Path, packing: str, host: int, hosts: int, workers: int, steps: range
) -> list[list[bytes]]:
    """The rows that one host makes, step after step; in a process of its own."""
    ds = build(settings(folder, packing), LENGTH, 0)
    share = BATCH // hosts
    part = slice(host * share, (host + 1) * share)
    batches = prefetch(
        lambda step: ds.batch(BATCH * step, BATCH, part), steps[0], steps[-1], workers
    )
    return [[ds.tokenizer.decode(row) for row in b.targets] for b in batches]


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("packing", ["best_fit", "concatenate"])
def test_order_is_that_of_one_host_and_one_worker(tmp_path, processes, packing):
    write_records(tmp_path)

    def seen(hosts: int, workers: int, steps: range = ALL) -> list[bytes]:
        args = [(tmp_path, packing, h, hosts, workers, steps) for h in range(hosts)]
        parts = [f.result() for f in [processes.submit(rows_of_host, *a) for a in args]]
        return [row for step in zip(*parts, strict=True) for rows in step for row in rows]

    order = seen(1, 1)
    assert len(order) == BATCH * STEPS
    epochs = [order[i : i + 10] for i in range(0, len(order), 10)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == 10
    assert len(set(map(tuple, epochs))) == len(epochs)
    for hosts, workers in [(1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 2), (4, 4)]:
        assert seen(hosts, workers) == order
    # Stopped and started again twice, over an epoch's end, with another number of each.
    parts = [seen(2, 2, range(0, 3)), seen(4, 1, range(3, 9)), seen(1, 4, range(9, STEPS))]
    assert sum(parts, []) == order


def test_prefetch_keeps_the_order_and_uses_its_threads():
    together = threading.Barrier(3)

    def make(n: int) -> int:
        if n < 3:
            together.wait(10)  # only three at once pass
        time.sleep(0.002 * (n % 3))
        return n

    assert list(prefetch(make, 0, 11, 3)) == list(range(12))
    assert list(prefetch(lambda n: n, 5, 6, 4)) == [5, 6]
    assert list(prefetch(lambda n: n, 3, 2, 4)) == []


def test_prefetch_raises_what_its_threads_raise_in_order():
    def make(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n

    got = []
    with pytest.raises(ValueError, match="two"):
        for n in prefetch(make, 0, 9, 4):
            got.append(n)
    assert got == [0, 1]


def test_seeking_costs_the_same_wherever(tmp_path):
    write_records(tmp_path)
    for packing in ("best_fit", "concatenate"):
        ds = build(settings(tmp_path, packing), LENGTH, 0)

        def seconds(start, ds=ds):
            best = np.inf
            for _ in range(20):
                t = time.thread_time()
                ds.batch(start, BATCH)
                best = min(best, time.thread_time() - t)
            return best

        seconds(10)
        assert seconds(10_000_000) < 5 * seconds(10)
