"""Fused attention kernels: splash attention on TPUs, cuDNN's on NVIDIA GPUs.

Each has the signature of `lm.model.attention`. The kernels come from JAX; elsewhere than on their
hardware they only compile, or run interpreted for tests.
"""

import jax

from lm.collectives import varying

SPLASH_BLOCK = 512  # rows of queries and keys that a TPU kernel holds at a time
SPLASH_LANES = 128  # of which a shorter block is a multiple


def splash(q_BTNH, k_BSKH, v_BSKH, segments_BT=None, interpret: bool = False) -> jax.Array:
    """Attention by the splash kernel of jax.experimental.pallas, causal blocks only."""
    h = q_BTNH.shape[-1]
    kernel = _splash_kernel(q_BTNH.shape[1], q_BTNH.shape[2], interpret)
    q, k, v = ((x.transpose(0, 2, 1, 3)) for x in (q_BTNH * h**-0.5, k_BSKH, v_BSKH))
    return jax.vmap(kernel)(q, k, v, segments_BT).transpose(0, 2, 1, 3)


class _Typed:
    """jax.experimental.pallas for the splash kernel: results vary over devices as arguments do.

    Inside a shard_map a kernel has to say so of its results, and this one does not.
    """

    def __init__(self, pallas):
        self._pallas = pallas

    def __getattr__(self, name: str):
        return getattr(self._pallas, name)

    def pallas_call(self, kernel, *, out_shape, **settings):
        def call(*args):
            args = varying(args)
            arrays = [x for x in jax.tree.leaves(args) if isinstance(x, jax.Array)]
            typed = lambda s: jax.ShapeDtypeStruct(
                s.shape, s.dtype, manual_axis_type=jax.typeof(arrays[0]).manual_axis_type
            )
            shapes = jax.tree.map(typed, out_shape)
            return self._pallas.pallas_call(kernel, out_shape=shapes, **settings)(*args)

        return call


def _splash_kernel(t: int, n_heads: int, interpret: bool):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    if not isinstance(kernels.pl, _Typed):
        kernels.pl = _Typed(kernels.pl)  # type: ignore[assignment]
    block = min(SPLASH_BLOCK, t)
    sizes = kernels.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
    )
    mask = masks.MultiHeadMask([masks.CausalMask((t, t)) for _ in range(n_heads)])
    attend = kernels.make_splash_mha(
        mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
    )

    def call(q, k, v, segments):
        ids = None if segments is None else kernels.SegmentIds(segments, segments)
        return attend(q, k, v, ids)

    return call


def cudnn(q_BTNH, k_BSKH, v_BSKH, segments_BT=None) -> jax.Array:
    """Attention by cuDNN's flash kernel."""
    mask = None
    if segments_BT is not None:
        mask = segments_BT[:, None, :, None] == segments_BT[:, None, None, :]
    return jax.nn.dot_product_attention(
        q_BTNH, k_BSKH, v_BSKH, mask=mask, is_causal=True, implementation="cudnn"
    )
