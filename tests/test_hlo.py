"""The reader of compiled programs, against programs whose work is counted by hand.

Every program here is compiled, for 8 simulated CPU devices or for a TPU that is not here: what is
tested is that the reader understands what XLA writes, not a text made up for it.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from launch.hlo import HBM, Shape, dtype_bits, parse
from launch.tally import tally
from lm.model.attention import SCOPE

AXES = {"data": 2, "model": 2, "pipe": 2}
P = jax.P
D = 64
PRODUCT = 2.0 * D**3  # FLOPs of one product of two D x D matrices


@pytest.fixture(scope="module", autouse=True)
def compiled_here():
    """A kept program may carry another's names of scopes: the key of the cache leaves them out."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh(
        tuple(AXES.values()), tuple(AXES), axis_types=(jax.sharding.AxisType.Auto,) * 3
    )


def text_of(f, *shapes, dtype="float32") -> str:
    """Returns the program that XLA makes of f on one device."""
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jax.jit(f).lower(*args).compile().as_text()


def text_on(mesh, f, in_specs, out_specs, *shapes, dtype="float32") -> str:
    """Returns the program that XLA makes of f, written for one device of a mesh."""
    mapped = jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    args = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    return jax.jit(mapped).lower(*args).compile().as_text()


def exchanged(t) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Returns (kind, axes) -> (times, tensor bytes, wire bytes) of what crosses devices."""
    found: dict = {}
    for c, times in t.collectives.items():
        key = (c.kind, c.groups.axes(AXES))
        before = found.get(key, (0, 0, 0))
        more = (times, times * c.tensor_bytes, times * c.wire_bytes)
        found[key] = tuple(a + b for a, b in zip(before, more, strict=True))
    return found


# FLOPs and loops


def test_products_in_nested_loops_count_by_trips():
    def f(x, w):
        inner = lambda x, _: (jnp.tanh(x @ w), None)
        outer = lambda x, _: (lax.scan(inner, x @ w, length=5)[0], None)
        return lax.scan(outer, x, length=3)[0] @ w

    assert tally(parse(text_of(f, (D, D), (D, D)))).matmul_flops == PRODUCT * (3 * (1 + 5) + 1)


def test_batched_and_transposed_products_count_their_contracted_size():
    f = lambda q, k: jnp.einsum("btnh,bsnh->bnts", q, k)
    assert (
        tally(parse(text_of(f, (2, 8, 3, 16), (2, 10, 3, 16)))).matmul_flops
        == 2.0 * 2 * 3 * 8 * 10 * 16
    )
    backward = jax.grad(lambda x, w: (x @ w).sum() ** 2, argnums=(0, 1))
    assert tally(parse(text_of(backward, (8, 16), (16, 32)))).matmul_flops == 3 * 2.0 * 8 * 16 * 32


@pytest.mark.parametrize("first, last, step", [(0, 7, 1), (2, 17, 4), (5, 5, 1), (20, 0, -3)])
def test_trip_counts_follow_from_the_counter_where_xla_does_not_state_them(first, last, step):
    def f(x, w):
        more = (lambda s: s[0] < last) if step > 0 else (lambda s: s[0] > last)
        body = lambda s: (s[0] + step, jnp.tanh(s[1] @ w))
        return lax.while_loop(more, body, (jnp.int32(first), x))[1]

    text = text_of(f, (D, D), (D, D))
    silent = re.sub(r'"known_trip_count":\{"n":"\d+"\}', '"":""', text)
    trips = len(range(first, last, step))
    assert tally(parse(text)).matmul_flops == PRODUCT * trips
    assert tally(parse(silent)).matmul_flops == PRODUCT * trips


def test_a_loop_of_unknown_length_is_named_and_counted_once():
    def f(x, w):
        return lax.while_loop(lambda x: x.sum() < 1e6, lambda x: x @ w, x)

    t = tally(parse(text_of(f, (D, D), (D, D))))
    assert t.matmul_flops == PRODUCT
    assert len(t.unknown_loops) == 1


CONVOLUTIONS = [
    dict(window_strides=(1,), padding=[(0, 0)]),
    dict(window_strides=(2,), padding=[(2, 1)]),
    dict(window_strides=(1,), padding=[(3, 3)], lhs_dilation=(3,)),
    dict(window_strides=(2,), padding=[(4, 0)], lhs_dilation=(2,), rhs_dilation=(2,)),
]


@pytest.mark.parametrize("how", CONVOLUTIONS)
def test_convolutions_count_positions_that_exist(how):
    batch, features, size, kernel, out = 2, 3, 9, 4, 5
    f = lambda x, w: lax.conv_general_dilated(x, w, **how)
    text = text_of(f, (batch, features, size), (out, features, kernel))
    if "convolution(" not in text:
        pytest.skip("this XLA hands convolutions to a library")
    stride, base = how["window_strides"][0], how.get("lhs_dilation", (1,))[0]
    gap, (low, high) = how.get("rhs_dilation", (1,))[0], how["padding"][0]
    spread = (size - 1) * base + 1
    positions = (spread + low + high - (kernel - 1) * gap - 1) // stride + 1
    met = sum(
        0 <= (at := o * stride + k * gap - low) < spread and at % base == 0
        for o, k in itertools.product(range(positions), range(kernel))
    )
    assert tally(parse(text)).matmul_flops == 2.0 * batch * features * out * met


def test_products_of_the_attention_scope_are_told_apart():
    def f(x, w):
        with jax.named_scope(SCOPE):
            scores = x @ x.T
        return scores @ w

    t = tally(parse(text_of(jax.grad(lambda x, w: f(x, w).sum() ** 2), (D, D), (D, D))))
    assert (t.attention_flops, t.matmul_flops) == (3 * PRODUCT, 5 * PRODUCT)


# Branches


def switching(ticks):
    """A pipeline in small: each device takes the branch that its place and the tick say."""

    def f(x, w):
        one = lambda x: x @ w
        two = lambda x: lax.psum(jnp.tanh(x @ w) @ w, "model")
        idle = lambda x: x * 0.5
        stage = lax.axis_index("pipe")

        def tick(x, t):
            branch = jnp.where(t < 2 * stage, 0, 1 + (t + stage) % 2)
            with jax.named_scope("work"):
                x = lax.switch(branch, (idle, one, two), x)
            return lax.ppermute(x, "pipe", [(0, 1), (1, 0)]), None

        return lax.scan(tick, x, jnp.arange(ticks))[0]

    return f


def test_a_branch_counts_at_its_heaviest_or_as_often_as_it_is_taken(mesh):
    ticks = 8
    text = text_on(mesh, switching(ticks), (P("data"), P()), P("data"), (2 * D, D), (D, D))
    program = parse(text)
    worst = tally(program)
    assert worst.matmul_flops == 2 * PRODUCT * ticks
    # Stage 0 alternates; stage 1 idles for two ticks and then alternates.
    first = tally(program, {"work": (0, 4 / 8, 4 / 8)})
    second = tally(program, {"work": (2 / 8, 3 / 8, 3 / 8)})
    assert first.matmul_flops == pytest.approx(PRODUCT * (4 + 8))
    assert second.matmul_flops == pytest.approx(PRODUCT * (3 + 6))
    whole = 4 * D * D
    assert exchanged(worst)["all-reduce", "model"] == (ticks, ticks * whole, ticks * whole)
    assert exchanged(second)["all-reduce", "model"][0] == pytest.approx(3)
    assert exchanged(second)["collective-permute", "pipe"] == (ticks, ticks * whole, ticks * whole)


def test_a_loop_of_one_turn_or_none_counts_as_often_as_it_is_taken(mesh):
    ticks = 8

    def f(x, w):
        def tick(x, t):
            turns = jnp.where(t < 2 * lax.axis_index("pipe"), 0, 1)
            with jax.named_scope("work"):
                x = lax.fori_loop(t, t + turns, lambda _, x: jnp.tanh(x @ w), x)
            return x, None

        return lax.scan(tick, x, jnp.arange(ticks))[0]

    text = text_on(mesh, f, (P("data"), P()), P("data"), (2 * D, D), (D, D))
    second = tally(parse(text), {"work": (2 / 8, 6 / 8)})
    assert second.matmul_flops == 6 * PRODUCT and not second.unknown_loops
    assert sum(tally(parse(text)).unknown_loops.values()) == ticks


# Collectives


def test_every_collective_is_found_with_its_axes_and_bytes(mesh):
    def f(x):
        x = lax.all_gather(x, "data", axis=0, tiled=True)  # [2 D, D]
        x = lax.psum(jnp.sin(x), ("data", "pipe"))
        x = lax.psum_scatter(jnp.cos(x), ("model", "pipe"), scatter_dimension=0, tiled=True)
        x = lax.all_to_all(jnp.sin(x), "model", split_axis=0, concat_axis=1, tiled=True)
        return lax.ppermute(x, ("data", "model"), [(i, (i + 1) % 4) for i in range(4)])

    t = tally(parse(text_on(mesh, f, (P("data"),), P("data"), (2 * D, D))))
    big = 4 * 2 * D * D
    assert exchanged(t) == {
        ("all-gather", "data"): (1, big, big / 2),
        ("all-reduce", "data+pipe"): (1, big, 2 * big * 3 / 4),
        ("reduce-scatter", "model+pipe"): (1, big, big * 3 / 4),
        ("all-to-all", "model"): (1, big / 4, big / 8),
        ("collective-permute", "data+model"): (1, big / 4, big / 4),
    }


def test_collectives_of_propagated_shardings_in_a_loop(mesh):
    layers = 6
    row, whole = jax.NamedSharding(mesh, P(None, "data")), jax.NamedSharding(mesh, P())

    def f(w, x):
        gather = lambda x, w: (jnp.tanh(x @ lax.with_sharding_constraint(w, whole)), None)
        return lax.scan(gather, x, w)[0]

    args = (
        jax.ShapeDtypeStruct((layers, D, D), "float32", sharding=row),
        jax.ShapeDtypeStruct((16, D), "float32", sharding=jax.NamedSharding(mesh, P("data"))),
    )
    with jax.set_mesh(mesh):
        text = jax.jit(f).lower(*args).compile().as_text()
    t = tally(parse(text))
    assert exchanged(t)["all-gather", "data"] == (layers, layers * 4 * D * D, layers * 2 * D * D)
    assert t.matmul_flops == layers * 2.0 * 8 * D * D


# Memory


def test_widths_of_dtypes():
    widths = {"pred": 8, "bf16": 16, "f8e4m3fn": 8, "s4": 4, "c64": 64, "token": 0, "f32": 32}
    assert {dtype: dtype_bits(dtype) for dtype in widths} == widths
    assert Shape("s4", (3, 3)).bytes == 5


def test_memory_traffic_of_slices_and_updates_is_what_they_touch():
    layers = 7
    f = lambda w, x: lax.scan(lambda x, w: (jnp.tanh(x + w), x), x, w)
    t = tally(parse(text_of(f, (layers, D, D), (D, D))))
    one = 4 * D * D
    # Each layer reads its w and x, writes the new x, saves the old one (5), and may copy it (7);
    # room for the saved ones is cleared once. Whole stacks a layer would make it four times more.
    assert 5 * one * layers <= t.hbm_bytes <= 9 * one * layers
    t = tally(parse(text_of(lambda a, b: jnp.tanh(a) + b, (D, D), (D, D))))
    assert t.hbm_bytes == 3 * one


# The same on a TPU that is not here


@pytest.fixture(scope="module")
def uncached():
    """A program for a machine that is not here can be put into the compile cache, not taken out."""
    pytest.importorskip("libtpu")
    shortest = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    yield
    jax.config.update("jax_persistent_cache_min_compile_time_secs", shortest)


def tpu(name, **sizes):
    from launch.topology import machine
    from lm.device_order import arrange
    from lm.layout import BY_TRAFFIC

    devices = arrange(machine(name).devices, sizes, BY_TRAFFIC)
    return jax.sharding.Mesh(devices, tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * 3)


@pytest.fixture
def tpu_mesh(uncached):
    return tpu("v5e:2x4", data=2, model=2, pipe=2)


@pytest.fixture
def tpu_slices(uncached):
    return tpu("2xv5e:2x2", data=4, model=2, pipe=1)


def test_a_gather_spread_over_products_counts_once(tpu_mesh):
    layers, width = 6, 1024
    axes = ("data", "model")

    def f(w, x):
        for i in range(layers):
            x = jnp.tanh(x @ lax.all_gather(w[i], axes, axis=0, tiled=True))
        return x

    specs = ((P(None, axes), P("data")), P("data"))
    text = text_on(tpu_mesh, f, *specs, (layers, width, width), (4096, width), dtype="bfloat16")
    # The compiler writes the gather into every product that it runs beside.
    assert text.count("AsyncCollectiveStart") >= 2 and text.count(" all-gather(") > layers
    t = tally(parse(text))
    whole = layers * 2 * width * width
    assert exchanged(t) == {("all-gather", "data+model"): (layers, whole, whole * 3 / 4)}
    assert any(what.overlapped for what in t.collectives)
    assert t.matmul_flops == layers * 2.0 * 2048 * width * width


TABLE = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)


@pytest.mark.parametrize(
    "shape, work, beside",
    [
        ((), lambda s, t: jnp.sin(s * jnp.asarray(TABLE)[t] + 1).sum(), False),
        ((1024, 1024), lambda s, t: jnp.tanh(s @ s), True),
    ],
)
def test_a_row_of_a_table_is_no_work_beside_an_exchange(tpu_mesh, shape, work, beside):
    def f(x, s):
        def tick(carry, t):
            x, s = carry
            return (lax.ppermute(x, "pipe", [(0, 1), (1, 0)]) * s.max(), work(s, t)), None

        return lax.scan(tick, (x, s), jnp.arange(8))[0][0]

    text = text_on(tpu_mesh, f, (P(), P()), P(), (512, 512), shape)
    between = re.search(r"collective-permute-start\(.*?collective-permute-done\(", text, re.DOTALL)
    assert between and " fusion(" in between.group()
    assert {what.overlapped for what in tally(parse(text)).collectives} == {beside}


def test_exchanges_between_slices_are_told_from_those_inside(tpu_slices):
    def f(x):
        x = lax.all_gather(x, "data", axis=0, tiled=True)
        return lax.psum_scatter(jnp.cos(x), "data", scatter_dimension=0, tiled=True)

    specs = ((P("data"),), P("data"))
    t = tally(parse(text_on(tpu_slices, f, *specs, (1024, 256))))
    whole = 4 * 1024 * 256
    inside, between = ({c.kind: c for c in t.collectives if c.slow == slow} for slow in (0, 1))
    assert {c.size for c in between.values()} == {2}
    # A half goes to each of the two devices of a slice, and they share it.
    assert between["all-gather"].tensor_bytes == whole / 2
    assert between["reduce-scatter"].wire_bytes == whole / 2 / 2
    assert inside["all-gather"].tensor_bytes == whole
    assert inside["all-gather"].groups.axes({"data": 2, "model": 2, "pipe": 1}) == "data"


def test_a_tpu_program_reads_like_the_cpus(mesh, tpu_mesh):
    ticks, shapes = 8, ((2 * D, D), (D, D))
    specs = ((P("data"), P()), P("data"))
    here = parse(text_on(mesh, switching(ticks), *specs, *shapes))
    there = parse(text_on(tpu_mesh, switching(ticks), *specs, *shapes))
    counts = {"work": (2 / 8, 3 / 8, 3 / 8)}
    assert tally(here).matmul_flops == tally(there).matmul_flops
    of = lambda p: tally(p, counts).matmul_flops
    assert of(here) == of(there)
    ours, theirs = (tally(p) for p in (here, there))
    key = ("collective-permute", "pipe")
    assert exchanged(ours)[key] == exchanged(theirs)[key]
    assert any(
        i.shapes and i.shapes[0].space != HBM for c in there.computations.values() for i in c
    )
