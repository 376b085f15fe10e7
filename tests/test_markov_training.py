"""Training reaches the entropy rate of a source whose entropy rate is known, and not less."""

from pathlib import Path

import pytest

from experiments.configs import markov
from lm.config import freeze
from lm.train.run import train
from lm.train.setup import load_data


def trained(workdir: Path, **changes) -> tuple[float, float, float]:
    """Returns (eval_loss, entropy rate, standard error of the loss of a perfect model)."""
    config = markov.get_config()
    config.update_from_flattened_dict(changes)
    c = freeze(config)
    c, dataset = load_data(c)
    assert dataset.entropy_rate is not None
    # A token's surprise has a deviation of at most about one nat at these sizes.
    error = 1.0 / dataset.n_validation_tokens**0.5
    return train(c, workdir)["eval_loss"], dataset.entropy_rate, error


def test_loss_is_near_the_entropy_rate(tmp_path, capsys):
    loss, rate, error = trained(
        tmp_path / "run",
        **{
            "train.steps": 250, "model.d_model": 32, "model.d_head": 16,
            "data.markov_symbols": 32, "data.markov_validation_tokens": 200_000,
        },
    )  # fmt: skip
    assert rate - 3 * error <= loss <= 1.05 * rate
    assert f"entropy rate is {rate:.4f} nats" in capsys.readouterr().err


@pytest.mark.bench
def test_loss_is_within_one_percent_of_the_entropy_rate(tmp_path):
    loss, rate, error = trained(tmp_path / "run")
    print(f"loss {loss:.5f}, entropy rate {rate:.5f}, ratio {loss / rate:.5f}, error {error:.5f}")
    assert rate - 3 * error <= loss <= 1.01 * rate
