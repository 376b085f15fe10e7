"""Text from a model: the prompt in one pass, then token by token over a key-value cache.

The window is model.max_length tokens. When it is full, its last half is read again as a new
beginning and generation goes on, so a text may be longer than the window; every token is drawn
with at least half a window of context once there is so much text. Two programs are compiled: one
that reads (again for another length), one that draws.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from lm.errors import BadInput
from lm.model.transformer import Model, Params

LARGEST_SEED = 2**32 - 1  # a larger one would repeat the text of a smaller


def generate(
    model: Model,
    params: Params,
    prompt_BT: np.ndarray,
    n_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Returns n_tokens ids after each prompt, int32 [B, n_tokens], all below vocab_size.

    Drawn from softmax(logits / temperature) over the top_k most likely tokens (none: all); a
    temperature of 0 takes the most likely one. The same seed gives the same text. Raises BadInput
    for an empty prompt, an id outside the vocabulary or a setting that cannot be.
    """
    window, vocab = model.config.max_length, model.config.vocab_size
    assert vocab is not None
    prompt_BT = np.asarray(prompt_BT)
    if prompt_BT.shape[1] == 0:
        raise BadInput("the prompt is empty: give at least one token to go on from")
    if prompt_BT.min() < 0 or prompt_BT.max() >= vocab:
        raise BadInput(f"the prompt has ids outside the model's vocabulary of {vocab}")
    if n_tokens < 1:
        raise BadInput(f"n_tokens is {n_tokens}: it must be at least 1")
    if not 0 <= temperature < math.inf:
        raise BadInput(f"temperature is {temperature}: it must be 0 (most likely token) or above")
    if top_k is not None and not 1 <= top_k <= vocab:
        raise BadInput(f"top_k is {top_k}: it must lie between 1 and the vocabulary's {vocab}")
    if window < 2:
        raise BadInput(f"model.max_length {window} leaves no room for a token after the prompt")
    if not 0 <= seed <= LARGEST_SEED:
        raise BadInput(f"seed is {seed}: it must lie between 0 and {LARGEST_SEED:,}")
    read, draw = _programs(model, top_k)
    key = jax.random.key(seed)
    text_BT, stop = prompt_BT.astype(np.int32), prompt_BT.shape[1] + n_tokens
    while text_BT.shape[1] < stop:
        length = text_BT.shape[1]
        context_BT = text_BT if length < window else text_BT[:, -(window // 2) :]
        start = context_BT.shape[1]
        count = min(window - start, stop - length)
        logits_BV, cache = read(params, context_BT)
        # The key of a token depends on its place in the text alone.
        drawn = draw(params, logits_BV, cache, start, count, temperature, key, length)
        text_BT = np.concatenate([text_BT, np.asarray(drawn)[:, :count]], 1)
    return text_BT[:, prompt_BT.shape[1] :]


def _programs(model: Model, top_k: int | None):
    window = model.config.max_length

    @jax.jit
    def read(params: Params, context_BT):
        cache = model.new_cache(context_BT.shape[0], window)
        hidden_BTD, cache = model.extend(params, context_BT, cache, jnp.int32(0))
        return model.logits(params, hidden_BTD[:, -1:])[:, 0], cache

    @jax.jit
    def draw(params: Params, logits_BV, cache, start, count, temperature, key, place):
        def body(i, carry):
            drawn_BT, logits_BV, cache = carry
            token_B = sample(logits_BV, temperature, top_k, jax.random.fold_in(key, place + i))
            drawn_BT = drawn_BT.at[:, i].set(token_B)
            hidden_BTD, cache = model.extend(params, token_B[:, None], cache, start + i)
            return drawn_BT, model.logits(params, hidden_BTD)[:, 0], cache

        room = jnp.zeros((logits_BV.shape[0], window), jnp.int32)
        return jax.lax.fori_loop(0, count, body, (room, logits_BV, cache))[0]

    return read, draw


def sample(logits_BV: jax.Array, temperature, top_k: int | None, key: jax.Array) -> jax.Array:
    """Returns a token for each row, int32 [B]; temperature may be traced, 0 is the arg max."""
    best_B = jnp.argmax(logits_BV, -1).astype(jnp.int32)
    if top_k is not None:
        least_B1 = jax.lax.top_k(logits_BV, top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)
    warm = jnp.where(temperature > 0, temperature, 1.0)
    drawn_B = jax.random.categorical(key, logits_BV / warm).astype(jnp.int32)
    return jnp.where(temperature > 0, drawn_B, best_B)
