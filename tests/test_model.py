"""The model against its float64 twin, and what must hold whatever the numbers are."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_model
import pytest
from scipy import special

from lm import layout as layouts
from lm.config import FFNS, MeshConfig, ModelConfig, OptimConfig
from lm.loss import token_loss_sum
from lm.model import embedding, ffn, norm, position, transformer
from lm.model.spec import flatten
from lm.optim.build import build as build_optimizer
from lm.train import state as train_state

V = 23
TINY = ModelConfig(
    vocab_size=V, d_model=16, n_layers=2, n_heads=4, max_length=20, init_std=0.2, ffn="swiglu"
)
B, T = 2, 18


def tiny(**changes) -> ModelConfig:
    return dataclasses.replace(TINY, **changes)


def random_params(m: ModelConfig, seed: int = 0):
    """Every parameter drawn at random, norms and biases too, so that none can be forgotten."""
    rng = np.random.default_rng(seed)

    def draw(row):
        fill = 1.0 if row.fill else 0.0
        return jnp.asarray(fill + rng.normal(0, 0.3, row.shape), jnp.float32)

    return jax.tree.map(draw, transformer.table(m), is_leaf=lambda x: hasattr(x, "axes"))


def random_batch(packed: bool, seed: int = 0):
    """(tokens, targets, weights, segments, positions) with two documents a row when packed."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (B, T + 1), np.int32)
    weights = rng.integers(0, 2, (B, T)).astype(np.float32)
    segments = positions = None
    if packed:
        starts = np.array([[7], [11]])
        at = np.broadcast_to(np.arange(T), (B, T))
        segments = (at >= starts).astype(np.int32)
        positions = np.where(at >= starts, at - starts, at).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:], weights, segments, positions


def close(got, want, relative_to_max):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
    assert error <= relative_to_max, f"{error:.2e} of the largest value"


CHOICES = {
    "ffn": FFNS,
    "position": ("rope", "linear", "ntk", "yarn", "sinusoidal", "learned", "none"),
    "n_kv_heads": (None, 2, 1),
    "norm": ("rmsnorm", "layernorm"),
    "norm_position": ("pre", "post"),
    "use_bias": (False, True),
    "qk_norm": (False, True),
    "attention": ("blocked", "plain"),
    "packed": (False, True),
    "tie_embeddings": (True, False),
    "vocab_multiple": (1, 8),
    "swish_c": (1.0, 1.7),
    "d_head": (None, 6),
    "ngram_order": (1, 3),
}


def covering(choices: dict) -> list[dict]:
    """Returns few combinations in which every two values of different fields meet (greedy)."""
    wanted = {
        frozenset({(a, x), (b, y)})
        for a, b in itertools.combinations(choices, 2)
        for x in choices[a]
        for y in choices[b]
    }
    cases = []
    while wanted:
        case = dict(min(wanted, key=lambda pair: sorted(map(str, pair))))
        for name in choices:
            if name not in case:
                case[name] = max(choices[name], key=lambda v: _new(wanted, case, (name, v)))  # noqa: B023
        wanted -= {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}
        cases.append({name: case[name] for name in choices})
    return cases


def _new(wanted: set, case: dict, item: tuple) -> int:
    return sum(frozenset({item, other}) in wanted for other in case.items())


CASES = covering(CHOICES)


def test_covering_meets_every_pair():
    for a, b in itertools.combinations(CHOICES, 2):
        met = {(case[a], case[b]) for case in CASES}
        assert met == set(itertools.product(CHOICES[a], CHOICES[b]))
    assert len(CASES) < 80


def config_of(case: dict) -> tuple[ModelConfig, bool]:
    case = dict(case)
    packed, position_name = case.pop("packed"), case.pop("position")
    case |= {"ngram_rows": 16}
    if position_name in ("linear", "ntk", "yarn"):
        # Short original length and small base: fast, slow and middle pairs all occur in YaRN.
        case |= {"rope_scaling": position_name, "rope_factor": 4.0, "rope_base": 50.0}
        case |= {"rope_original_length": 300}
        position_name = "rope"
    return tiny(position=position_name, **case), packed


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_forward_and_loss_equal_the_float64_twin(case):
    m, packed = config_of(case)
    model, params = transformer.build(m, "float32"), random_params(m)
    tokens, targets, weights, segments, positions = random_batch(packed)
    hidden = model.hidden(params, tokens, segments, positions)
    want_hidden, want_logits = numpy_model.forward(m, params, tokens, segments, positions)
    close(hidden, want_hidden, 2e-5)
    close(model.logits(params, hidden), want_logits, 2e-5)
    got = token_loss_sum(
        hidden.reshape(B * T, -1),
        model.head(params),
        targets.reshape(-1),
        weights.reshape(-1),
        V,
    )
    want = numpy_model.loss(m, params, tokens, targets, weights, segments, positions)
    assert float(got) == pytest.approx(want, rel=1e-5)


def test_bfloat16_stays_near_the_twin_and_logits_are_float32():
    m = tiny(qk_norm=True)
    model, params = transformer.build(m, "bfloat16"), random_params(m)
    tokens = random_batch(False)[0]
    hidden = model.hidden(params, tokens)
    assert hidden.dtype == jnp.bfloat16
    logits = model.logits(params, hidden)
    assert logits.dtype == jnp.float32
    close(logits, numpy_model.forward(m, params, tokens)[1], 0.05)


# Positions


def rope(**changes) -> ModelConfig:
    return tiny(d_head=64, max_length=8192, **changes)


SCALED = [
    {"rope_scaling": "none"},
    {"rope_scaling": "linear", "rope_factor": 2.0},
    {"rope_scaling": "ntk", "rope_factor": 8.0},
    {"rope_scaling": "yarn", "rope_factor": 4.0},
    {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_length": 131072},
    {"rope_scaling": "yarn", "rope_factor": 16.0, "rope_base": 500000.0},
]


@pytest.mark.parametrize("scaling", SCALED, ids=lambda s: "-".join(str(v) for v in s.values()))
def test_rope_table_is_the_twins_to_position_8191_even_in_bfloat16(scaling):
    m = rope(**scaling)
    factor = 0.1 * np.log(m.rope_factor) + 1 if m.rope_scaling == "yarn" else 1.0
    angles = np.arange(8192)[:, None] * numpy_model.frequencies(m)
    for got, want in zip(position.rope_table(m), (np.cos(angles), np.sin(angles)), strict=True):
        assert got.dtype == np.float32
        assert np.abs(got - factor * want).max() < 1e-6
        assert np.abs(np.asarray(jnp.bfloat16(got), np.float64) - factor * want).max() < 0.004


@pytest.mark.parametrize("scaling", SCALED[:4], ids=lambda s: s["rope_scaling"])
def test_rope_scores_depend_only_on_distance(scaling):
    m = rope(**scaling)
    cos, sin = map(jnp.asarray, position.rope_table(m))
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 64)).astype(np.float32)

    def score(query_at, key_at):
        turned = [
            position.rotate(x, cos[at : at + 1], sin[at : at + 1])
            for x, at in ((q, query_at), (k, key_at))
        ]
        return float((turned[0] * turned[1]).sum())

    for distance in (0, 1, 2, 100):
        far = [score(at + distance, at) for at in (0, 1, 255, 256, 257, 4096, 8191 - distance)]
        assert far == pytest.approx([far[0]] * len(far), abs=2e-4)
    assert abs(score(256, 0) - score(257, 0)) > 1e-3  # neighbours stay apart


# Norms and parameters


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_norm_statistics_of_bfloat16_are_float32(kind):
    # A large mean: 16-bit sums would lose the deviations altogether.
    x = jnp.bfloat16(200 + np.random.default_rng(0).normal(0, 4, (5, 4096)))
    got = norm.normalize(kind, x, jnp.ones(4096), None, 1e-5)
    assert got.dtype == jnp.bfloat16
    exact = np.asarray(x, np.float64)
    if kind == "layernorm":
        exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    assert np.abs(np.asarray(got, np.float64) - exact).max() <= np.abs(exact).max() * 2**-8


def test_gelu_and_its_written_out_derivative_equal_float64():
    z = np.linspace(-8, 8, 4001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    value, slope = jax.jvp(ffn.gelu, (jnp.float32(z),), (jnp.ones(z.size, jnp.float32),))
    np.testing.assert_allclose(value, z * special.ndtr(z), rtol=2e-5, atol=1e-9)
    np.testing.assert_allclose(slope, special.ndtr(z) + z * density, rtol=0, atol=3e-7)


@pytest.mark.parametrize("ffn", ["swiglu", "relu"])
@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_no_bias_leaf_without_biases_and_all_of_them_with(ffn, kind):
    names = lambda bias: set(flatten(transformer.table(tiny(use_bias=bias, norm=kind, ffn=ffn))))
    assert not [n for n in names(False) if "bias" in n]
    biases = {n.split("/", 1)[1] for n in names(True) - names(False)}
    expected = {f"attention/{n}_bias" for n in ("query", "key", "value", "out")}
    expected |= {"ffn/up_bias", "ffn/down_bias"} | ({"ffn/gate_bias"} if ffn == "swiglu" else set())
    if kind == "layernorm":
        expected |= {"attention_norm/bias", "ffn_norm/bias", "bias"}
    assert biases == expected
    assert names(False) < names(True)


@pytest.mark.parametrize("d", [64, 96, 128, 256, 384, 4096])
def test_gated_ffn_has_two_thirds_of_the_width_of_a_plain_one(d):
    gated, plain = tiny(d_model=d, ffn="geglu").ff_dim, tiny(d_model=d, ffn="gelu").ff_dim
    assert plain == 4 * d and gated % 8 == 0
    assert abs(3 * gated - 2 * plain) <= 12  # half of the rounding to 8, three matrices
    assert d % 3 or 3 * gated == 2 * plain
    assert tiny(d_ff=40).ff_dim == tiny(d_ff=40, ffn="gelu").ff_dim == 40


@pytest.mark.parametrize("n_devices", [1, 2, 4, 8])
@pytest.mark.parametrize("fully_sharded", [False, True])
def test_initial_values_are_the_same_bits_on_any_mesh(n_devices, fully_sharded):
    m = tiny(vocab_multiple=8, tie_embeddings=False, position="learned", use_bias=True)
    rows = transformer.table(m)
    tx = build_optimizer(OptimConfig(optimizer="sgd"), rows)

    def params(mesh):
        layout = layouts.make_layout(mesh, jax.devices())
        return train_state.initial(rows, tx, layout, 7).params

    one = params(MeshConfig())
    many = params(MeshConfig(data=n_devices, fully_sharded=fully_sharded))
    jax.tree.map(np.testing.assert_array_equal, one, many)
    query = np.asarray(one["blocks"]["attention"]["query"])
    assert query.std() == pytest.approx(m.init_std, rel=0.1)
    assert np.abs(query[0] - query[1]).max() > 0.1  # layers differ
    assert not np.asarray(one["embedding"])[V:].any() and np.asarray(one["embedding"])[:V].all()
    shards = many["blocks"]["attention"]["query"].addressable_shards
    assert len(shards) == n_devices
    assert shards[0].data.size == query.size // (n_devices if fully_sharded else 1)


def test_a_new_parameter_changes_no_other_initial_value():
    few = flatten(transformer.table(tiny()))
    more = flatten(transformer.table(tiny(use_bias=True, qk_norm=True, n_layers=3)))
    everything = lambda row: tuple(slice(None) for _ in row.shape)
    for name in ("embedding", "blocks/ffn/up"):
        a = few[name].initial(0, name, everything(few[name]))
        b = more[name].initial(0, name, everything(more[name]))
        np.testing.assert_array_equal(a, b[: len(a)])
        assert (a != few[name].initial(1, name, everything(few[name]))).all()


# How layers run


def value_and_gradients(m: ModelConfig, key=None):
    model, params = transformer.build(m, "float32"), random_params(m)
    tokens, targets, weights, segments, positions = random_batch(packed=True)

    def loss(params):
        hidden = model.hidden(params, tokens, segments, positions, key)
        flat = hidden.reshape(B * T, -1)
        return token_loss_sum(flat, model.head(params), targets.ravel(), weights.ravel(), V)

    return jax.jit(jax.value_and_grad(loss))(params), str(jax.make_jaxpr(loss)(params))


def test_scanned_and_recomputed_layers_equal_unrolled_ones_with_dropout():
    m, key = tiny(dropout=0.3), jax.random.key(3)
    (loss, gradients), unrolled = value_and_gradients(m, key)
    assert "remat" not in unrolled and "scan" not in unrolled
    arms = (tiny(dropout=0.3, scan_layers=True), "scan"), (tiny(dropout=0.3, remat=True), "remat")
    for arm, word in arms:
        (other, other_gradients), program = value_and_gradients(arm, key)
        assert word in program  # the arms differ
        close(other, loss, 1e-6)
        jax.tree.map(lambda a, b: close(a, b, 3e-6), other_gradients, gradients)


def test_dropout_keeps_the_mean_and_acts_only_with_a_key():
    x = jnp.ones(100_000)
    for rate in (0.1, 0.5):
        dropped = np.asarray(transformer._dropout(rate, jax.random.key(0))(x, 0))
        np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - rate)], rtol=1e-6)
        standard_error = (rate / (1 - rate) / len(x)) ** 0.5
        assert abs(dropped.mean() - 1) < 4 * standard_error
    m = tiny(dropout=0.5)
    model, params, tokens = (
        transformer.build(m, "float32"),
        random_params(m),
        random_batch(False)[0],
    )
    hidden = lambda key: np.asarray(model.hidden(params, tokens, dropout_key=key))
    off = np.asarray(transformer.build(tiny(), "float32").hidden(params, tokens))
    np.testing.assert_array_equal(hidden(None), off)
    one, same, two = (hidden(jax.random.key(i)) for i in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != two).any() and (one != off).any()


def test_ngrams_add_nothing_at_first_and_know_nothing_of_other_documents():
    m = tiny(ngram_order=3, ngram_rows=16)
    rows = transformer.table(m)
    everything = (slice(None), slice(None))
    assert not rows["ngrams"].initial(0, "ngrams", everything).any()
    assert rows["ngrams"].decayed and not rows["ngrams"].hidden_matrix
    tokens, _, _, _, positions = random_batch(True)
    ids = np.asarray(embedding.ngram_ids(m, tokens, positions))
    begins = positions == 0
    alone = np.asarray(embedding.ngram_ids(m, tokens[begins][:, None]))
    np.testing.assert_array_equal(ids[begins], alone[:, 0])
    assert (ids != np.asarray(embedding.ngram_ids(m, tokens))).any()  # as one document
