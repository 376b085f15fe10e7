"""The loss and its gradient, with a soft-cap and a z-loss, and what holding few logits saves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_model import V, close, tiny

from lm import loss as losses
from lm.loss import Rule, token_loss_sum, token_losses


def plain(hidden, head, targets, weights, rule: Rule):
    """The definition: all logits written out. (objective, z-loss)"""
    logits = jnp.einsum("ND,VD->NV", hidden, head, preferred_element_type=jnp.float32)
    if rule.softcap:
        logits = rule.softcap * jnp.tanh(logits / rule.softcap)
    logits = jnp.where(jnp.arange(head.shape[0]) < rule.vocab, logits, -jnp.inf)
    lse = jax.nn.logsumexp(logits, -1)
    z = rule.z_loss * (lse**2 * weights).sum()
    hit = jnp.take_along_axis(logits, targets[:, None], 1)[:, 0]
    return ((lse - hit) * weights).sum() + z, z


def plain_gradients(hidden, head, targets, weights):
    """The definition's gradients in float32, of all logits at once: products of what the compute
    dtype keeps of the logits' gradient."""
    logits = jnp.einsum("ND,VD->NV", hidden, head, preferred_element_type=jnp.float32)
    hit = jnp.arange(head.shape[0]) == targets[:, None]
    d = ((jax.nn.softmax(logits) - hit) * weights[:, None]).astype(hidden.dtype)
    product = lambda *args: jnp.einsum(*args, preferred_element_type=jnp.float32)
    return product("NV,VD->ND", d, head), product("NV,ND->VD", d, hidden)


def inputs(n, v, d, dtype=jnp.float32, size=1.0):
    key = jax.random.split(jax.random.key(0), 4)
    hidden = size * jax.random.normal(key[0], (n, d), dtype)
    head = jax.random.normal(key[1], (v, d), dtype) * d**-0.5
    targets = jax.random.randint(key[2], (n,), 0, v - 3)
    return hidden, head, targets, jax.random.uniform(key[3], (n,))


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("parts", [1, 4])
def test_soft_cap_and_z_loss_equal_the_definition(monkeypatch, softcap, z_loss, parts):
    h, w, targets, weights = inputs(16, 40, 8, size=3.0)
    monkeypatch.setattr(losses, "LOGITS_BYTES", 4 * 16 * 40 // parts)
    rule = Rule(37, softcap, z_loss)

    def both(f):
        def scaled(h, w):
            objective, z = f(h, w, targets, weights, rule)
            return 0.5 * objective, z

        return jax.jit(jax.value_and_grad(scaled, (0, 1), has_aux=True))(h, w)

    (got, z), grads = both(token_losses)
    (want, want_z), want_grads = both(plain)
    assert float(got) == pytest.approx(float(want), rel=1e-6)
    assert (z is None) == (z_loss == 0) and float(z or 0) == pytest.approx(float(want_z), rel=1e-6)
    for a, b in zip(grads, want_grads, strict=True):
        close(a, b, 3e-6)


@pytest.mark.bench
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_logits_are_held(dtype):
    """V = 128k, 4096 tokens, d = 1024: values of the plain loss at a quarter of its memory."""
    n, v, d = 4096, 128 * 1024, 1024
    h, w, targets, weights = inputs(n, v, d, dtype)
    rule = Rule(v)
    mean = lambda f: lambda h, w: f(h, w, targets, weights, rule)[0] / n
    ours, theirs = (jax.jit(jax.value_and_grad(mean(f), (0, 1))) for f in (token_losses, plain))
    temp = lambda f: f.lower(h, w).compile().memory_analysis().temp_size_in_bytes
    held, plainly = temp(ours), temp(theirs)
    print(f"{dtype}: temporaries {held / 2**20:.0f} MiB, plain {plainly / 2**20:.0f} MiB")
    assert held <= plainly / 4
    (loss, grads), (want, theirs_grads) = ours(h, w), theirs(h, w)
    assert float(loss) == pytest.approx(float(want), rel=1e-6)
    top = lambda x: float(jnp.abs(x).max())

    # In bfloat16 two sums that differ at all may be rounded to neighbours: the sums are compared,
    # and the gradients are these to half a unit of the last bit.
    @jax.jit
    def unrounded(h, w):
        return losses.loss_and_gradients(h, w, targets, weights / n, rule, jnp.float32)[1]

    exact = unrounded(h, w)
    want_grads = jax.jit(lambda h, w: plain_gradients(h, w, targets, weights / n))(h, w)
    errors = [top(a - b) / top(b) for a, b in zip(exact, want_grads, strict=True)]
    print(f"{dtype}: gradients differ by {errors} of their largest value")
    assert max(errors) <= 1e-6
    half = 0 if dtype == "float32" else 2.0**-8
    for a, b in zip(grads, exact, strict=True):
        assert (jnp.abs(jnp.float32(a) - b) <= half * jnp.abs(b) + 1e-6 * top(b)).all()
    # And by the compute dtype's own rounding from what autodiff makes of the definition.
    for a, b in zip(grads, theirs_grads, strict=True):
        unit = 1e-6 * top(b) if dtype == "float32" else 2.0 ** (np.floor(np.log2(top(b))) - 7)
        assert top(jnp.float32(a) - jnp.float32(b)) <= unit
    if dtype == "bfloat16":
        # Ours multiplies logits' gradients rounded to bfloat16, autodiff's are float32.
        exact = theirs(h.astype("float32"), w.astype("float32"))[1]
        off = lambda a, b: float(jnp.sqrt(jnp.mean((jnp.float32(a) - b) ** 2)))
        ratios = [off(a, x) / off(b, x) for a, b, x in zip(grads, theirs_grads, exact, strict=True)]
        print(f"{dtype}: distance to the exact gradients over autodiff's: {ratios}")
        assert max(ratios) <= 1.5


@pytest.mark.parametrize("multiple", [1, 16])
def test_a_zero_head_loses_ln_v_and_padding_gets_no_gradient(multiple):
    m = tiny(vocab_multiple=multiple)
    rng = np.random.default_rng(0)
    hidden = jnp.float32(rng.normal(size=(12, 16)))
    targets, weights = jnp.asarray(rng.integers(0, V, 12)), jnp.ones(12)
    mean = lambda head: token_loss_sum(hidden, head, targets, weights, V) / 12
    assert float(mean(jnp.zeros((m.padded_vocab, 16)))) == pytest.approx(np.log(V), rel=1e-6)
    gradient = jax.grad(mean)(jnp.float32(rng.normal(size=(m.padded_vocab, 16))))
    assert not np.asarray(gradient[V:]).any() and np.asarray(gradient[:V]).all()


@pytest.mark.parametrize("held", [2**28, 8 * 32 * 4, 32 * 4])
def test_loss_gradient_equals_autodiff_of_log_softmax(held, monkeypatch):
    monkeypatch.setattr("lm.loss.LOGITS_BYTES", held)  # all rows at once, two, or one
    rng = np.random.default_rng(0)
    hidden, head = jnp.float32(rng.normal(size=(12, 16))), jnp.float32(rng.normal(size=(32, 16)))
    targets = jnp.asarray(rng.integers(0, V, 12))
    weights = jnp.float32(rng.integers(0, 3, 12))

    def written_out(hidden, head):
        log_p = jax.nn.log_softmax(hidden @ head[:V].T)
        return 0.5 * -(log_p[np.arange(12), targets] * weights).sum()

    ours = lambda h, w: 0.5 * token_loss_sum(h, w, targets, weights, V)
    close(ours(hidden, head), written_out(hidden, head), 1e-6)
    got, want = (jax.value_and_grad(f, (0, 1))(hidden, head) for f in (ours, written_out))
    close(got[0], want[0], 1e-6)
    close(got[1][0], want[1][0], 2e-6)
    close(got[1][1], want[1][1], 2e-6)


def test_loss_of_bfloat16_sums_in_float32():
    rng = np.random.default_rng(0)
    hidden, head = jnp.bfloat16(rng.normal(size=(64, 16))), jnp.bfloat16(rng.normal(size=(V, 16)))
    targets = jnp.asarray(rng.integers(0, V, 64))
    got = token_loss_sum(hidden, head, targets, jnp.ones(64), V)
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
    want = (np.log(np.exp(logits).sum(-1)) - logits[np.arange(64), targets]).sum()
    assert got.dtype == jnp.float32 and float(got) == pytest.approx(want, rel=1e-5)


def test_the_loss_holds_a_part_of_its_logits(monkeypatch):
    n, v, d = 4096, 2048, 64
    shapes = [jax.ShapeDtypeStruct(s, t) for s, t in (((n, d), "f4"), ((v, d), "f4"), ((n,), "i4"))]

    def temporary(held):
        monkeypatch.setattr("lm.loss.LOGITS_BYTES", held)
        mean = lambda h, w, t: token_loss_sum(h, w, t, jnp.ones(n), v)
        both = jax.jit(jax.value_and_grad(mean, (0, 1)))
        return both.lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert temporary(4 * n * v // 16) < temporary(4 * n * v) / 4
