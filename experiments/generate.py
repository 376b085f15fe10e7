"""Writes text with a trained model: the prompt, then what the model goes on with.

    python -m experiments.generate --workdir=runs/tiny --prompt="def main(" --n_tokens=200

The folder is a work folder of experiments.train (or runs/<run_id> of a sweep): its newest good
checkpoint, its config and its tokenizer are used. --temperature=0 always takes the most likely
token; below 1 is safer, above 1 is wilder. --top_k=20 draws from the 20 most likely tokens only.
The same seed writes the same text. Where the text outgrows the model's window (model.max_length),
the last half window is read again and the text goes on from there.
"""

import time

from absl import flags

from experiments import cli
from lm.errors import BadInput
from lm.progress import say

WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a trained run, s3:// or gs:// too")
PROMPT = flags.DEFINE_string("prompt", "\n", "the text to go on from")
N_TOKENS = flags.DEFINE_integer("n_tokens", 200, "tokens to write after the prompt")
TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "logits are divided by it; 0: most likely")
TOP_K = flags.DEFINE_integer("top_k", None, "draw from so many most likely tokens; none: all")
SEED = flags.DEFINE_integer("seed", 0, "of the draws")


def main() -> int | None:
    if not WORKDIR.value:
        raise BadInput("no run given: add --workdir=DIR, the work folder of a trained run")

    try:
        text = (PROMPT.value or "").encode()
    except UnicodeEncodeError as e:  # bytes of the command line that are no UTF-8 come as halves
        raise BadInput(f"--prompt={PROMPT.value!a} is not UTF-8 text: write it in UTF-8") from e
    from lm.data import tokenizer as tokenizers
    from lm.generate import generate
    from lm.train import checkpoint, mirror
    from lm.train.setup import model_of

    config, params, spec = checkpoint.restore_params(mirror.read(WORKDIR.value))
    tokenizer = tokenizers.from_spec(spec)
    prompt = tokenizer.encode(text)
    model = model_of(config)
    started = time.perf_counter()
    ids = generate(
        model, params, prompt[None], N_TOKENS.value, TEMPERATURE.value, TOP_K.value, SEED.value
    )[0]
    seconds = time.perf_counter() - started
    written = tokenizer.decode(prompt) + (b" " if spec["kind"] == "symbols" else b"")
    # Bytes may stop inside a character: what cannot be shown is replaced, never an error.
    print((written + tokenizer.decode(ids)).decode(errors="replace"), flush=True)
    say(f"{len(ids)} tokens in {seconds:.1f} s, compiling included")
    return None


def run() -> None:
    cli.run(main, addresses=True)


if __name__ == "__main__":
    run()
