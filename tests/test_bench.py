"""The line that experiments.bench prints has what other programs read."""

import json

import pytest
from fresh_command import fresh

from experiments import cli
from experiments.configs import bench_s
from lm.budget import n_params
from lm.config import freeze


def test_a_line_of_numbers_that_belong_together(monkeypatch, capsys):
    small = bench_s.get_config()
    small.model.d_model, small.model.n_layers, small.model.n_heads = 8, 1, 1
    small.model.d_ff, small.model.max_length, small.train.batch_size = 8, 16, 4
    monkeypatch.setattr(bench_s, "get_config", lambda: small)
    with fresh("bench") as bench:
        cli._parse(["bench", "--shape=S", "--dtype=bfloat16", "--steps=3"])
        bench.main()
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "tokens_per_second", "step_seconds", "step_cpu_seconds", "first_step_seconds",
        "peak_memory_bytes", "n_params",
    }  # fmt: skip
    assert small.precision.compute == "bfloat16"
    assert found["tokens_per_second"] * found["step_seconds"] == pytest.approx(4 * 16)
    assert found["n_params"] == n_params(freeze(small).model)
    assert found["first_step_seconds"] > found["step_seconds"] > 0
    assert found["step_cpu_seconds"] > 0 and found["peak_memory_bytes"] > 2**20
