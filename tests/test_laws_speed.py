"""Speed and memory beside SciPy loops of the same problem; only in `make bench`."""

import os
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

from lm.laws.bootstrap import bootstrap, draw_counts
from lm.laws.fit import fit
from lm.laws.forms import LAWS
from tests.published_tables import TRUE, chinchilla_240, cloud, noisy, path_of

CHINCHILLA = LAWS["chinchilla"]
pytestmark = pytest.mark.bench


def table():
    try:
        return chinchilla_240()
    except pytest.skip.Exception:
        return cloud(), noisy(cloud(), 0.02)


def best_of(repeats, work):
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def scipy_refit(x, y, weights, starts):
    """What public tools do: L-BFGS from a grid of starts, Huber on log loss by log-sum-exp."""
    from scipy.optimize import minimize

    log_n, log_d, log_y = np.log(x["n"]), np.log(x["d"]), np.log(y)

    def huber(theta):
        a, b, e, alpha, beta = theta
        terms = np.stack([a - alpha * log_n, b - beta * log_d, np.full_like(log_n, e)])
        top = terms.max(axis=0)
        share = np.exp(terms - top)
        total = share.sum(axis=0)
        r = top + np.log(total) - log_y
        size = np.abs(r)
        value = np.where(size <= 1e-3, r * r / 2, 1e-3 * (size - 5e-4))
        pull = weights * np.clip(r, -1e-3, 1e-3) * share / total
        slope = [pull[0].sum(), pull[1].sum(), pull[2].sum(), -pull[0] @ log_n, -pull[1] @ log_d]
        return 1e3 * np.sum(weights * value), 1e3 * np.array(slope)

    best = None
    for start in starts:
        found = minimize(huber, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000})
        if best is None or found.fun < best.fun:
            best = found
    return best.fun / 1e3, best.x


def test_fit_and_bootstrap(capsys):
    x, y = table()
    found = fit(CHINCHILLA, x, y)
    one = best_of(20, lambda: fit(CHINCHILLA, x, y))
    thousand = best_of(3, lambda: bootstrap(found, 1000, 0))
    samples = bootstrap(found, 1000, 0)
    assert samples.failed == 0
    grid = [
        (a, b, 0.5, c, d) for a in (5, 10) for b in (5, 10) for c in (0.3, 0.5) for d in (0.3, 0.5)
    ]
    scipy_one = best_of(1, lambda: scipy_refit(x, y, np.ones_like(y), grid))
    value, theta = scipy_refit(x, y, np.ones_like(y), grid)
    counts = draw_counts(y.size, 1000, 0)[:20]
    p = found.params
    start = [(np.log(p["A"]), np.log(p["B"]), np.log(p["E"]), p["alpha"], p["beta"])]
    began = time.process_time()
    losses = [scipy_refit(x, y, w, start)[0] for w in counts]
    scipy_thousand = 50 * (time.process_time() - began)
    own = [
        found.problem.reweighted(w)(samples.theta[[k]], np.zeros(1, int)).f[0]
        for k, w in enumerate(draw_counts(y.size, 1000, 0)[:20])
    ]
    behind = np.array(losses) / np.array(own) - 1
    with capsys.disabled():
        print(
            f"\none fit: {one:.3f} CPU s; SciPy, 16 starts: {scipy_one:.2f} s, objective higher by "
            f"{value / found.sum - 1:.1e}\n1000 refits: {thousand:.2f} CPU s; SciPy, one start "
            f"each: {scipy_thousand:.1f} s, objectives higher by {behind.min():.1e} to "
            f"{behind.max():.1e}"
        )
    assert one <= 0.05 and thousand <= 1.0
    assert behind.min() > -1e-9 and value > found.sum * (1 - 1e-9)
    assert theta.size == 5


def test_whole_process(tmp_path, capsys):
    path = path_of("chinchilla_epoch.csv")
    command = [
        sys.executable, "-m", "experiments.fit", f"--runs={path}", f"--out={tmp_path}",
        "--where=excluded_in_replication == 0", "--bootstrap=1000",
    ]  # fmt: skip
    walls = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
        walls.append(time.monotonic() - began)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    with capsys.disabled():
        print(f"\nexperiments.fit, 1000 refits: {min(walls):.2f} s, {memory / 2**20:.0f} MiB")
    assert min(walls) <= 8 and memory < 1e9


def test_five_thousand_rows(capsys):
    x = cloud(5000)
    y = noisy(x, 0.01)
    found = fit(CHINCHILLA, x, y)
    one = best_of(3, lambda: fit(CHINCHILLA, x, y))
    began = time.process_time()
    samples = bootstrap(found, 1000, 0, cluster=np.repeat(np.arange(500), 10))
    took = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with capsys.disabled():
        print(
            f"\n5000 rows: one fit {one:.2f} CPU s, 1000 refits {took:.1f} s, process at "
            f"{memory / 2**20:.0f} MiB"
        )
    assert found.status == "converged" and samples.failed == 0
    for name, value in TRUE.items():
        assert abs(found.params[name] - value) < 4 * np.std(samples.params[name])
    assert one < 1.5 and took < 40
