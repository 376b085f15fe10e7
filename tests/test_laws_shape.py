"""Shapes are buildable, near what was asked, and counted by lm/budget.py alone."""

import dataclasses

import numpy as np
import pytest

from lm import budget
from lm.config import ModelConfig
from lm.errors import BadInput
from lm.laws.shape import SPREAD, Family, default_family

SMALL = ModelConfig(vocab_size=256, d_model=64, n_layers=4, n_heads=4, max_length=128)
VARIED = dataclasses.replace(
    SMALL, ffn="gelu", use_bias=True, norm="layernorm", position="learned", qk_norm=True,
    n_heads=8, n_kv_heads=2, d_ff=200, tie_embeddings=False,
)  # fmt: skip


@pytest.mark.parametrize("base", [SMALL, VARIED], ids=["plain", "varied"])
@pytest.mark.parametrize("n", [8e4, 3e5, 2e6, 1e9])
def test_the_nearest_shape_is_a_model_near_n_with_its_own_count(base, n):
    shape = Family(base, 128).nearest(n)
    named = {f.name for f in dataclasses.fields(ModelConfig)}
    model = dataclasses.replace(base, **{k: v for k, v in shape.items() if k in named})
    assert shape["n_params"] == budget.n_params(model)
    assert shape["n_params_non_embedding"] == budget.n_params_non_embedding(model)
    assert shape["flops_per_token"] == budget.flops_per_token(model, 128)
    assert shape["d_model"] == shape["n_heads"] * shape["d_head"]
    assert shape["n_heads"] % shape["n_kv_heads"] == 0
    assert all(type(v) in (int, float) for v in shape.values())
    assert shape["n_params"] == pytest.approx(n, rel=0.16 if n < 1e6 else 0.03)
    if shape["n_layers"] > 1:
        aspect = shape["d_model"] / shape["n_layers"] / (base.d_model / base.n_layers)
        assert 1 / SPREAD <= aspect * 1.0001 and aspect <= SPREAD * 1.0001


def test_large_models_are_met_closely_for_either_count_of_n():
    for counts in ("n_params", "n_params_non_embedding"):
        for n in (7e9, 32.2e9, 280e9):
            assert default_family(counts).nearest(n)[counts] == pytest.approx(n, rel=0.01)


def test_llama_is_a_member_of_the_default_family():
    family = default_family()
    llama = dataclasses.replace(family.base, d_ff=None)
    n, train, serve = family.counts(np.log(4096.0))
    # The FFN is 8/3 wide exactly here and a multiple of 8 there.
    assert n == pytest.approx(budget.n_params(llama), rel=1e-3)
    assert train == pytest.approx(budget.flops_per_token(llama, 2048), rel=1e-3)
    assert serve == pytest.approx(budget.forward_matmul_flops(llama, 2048), rel=1e-3)


@pytest.mark.parametrize("base", [SMALL, VARIED], ids=["plain", "varied"])
def test_polynomials_are_the_counts_and_log_size_inverts_them(base):
    family = Family(base, 128, "n_params_non_embedding")
    for width in (16.0, 100.0, 5000.0):
        assert family._polynomials(width) == pytest.approx(family._count(width), rel=1e-9)
    n = np.geomspace(1e4, 1e12, 9)
    np.testing.assert_allclose(family.counts(family.log_size(n))[0], n, rtol=1e-12)
    assert np.isnan(family.log_size(0.5 * family.counts(0.0)[0]))


def test_what_cannot_be_built_is_said():
    with pytest.raises(BadInput, match="no shape of this family has as few as 1e"):
        default_family().nearest(1e5)
    with pytest.raises(BadInput, match="n_params_non_embedding, not 'layers'"):
        Family(SMALL, 128, "layers")
    with pytest.raises(BadInput, match="vocab_size is none"):
        Family(dataclasses.replace(SMALL, vocab_size=None), 128)
