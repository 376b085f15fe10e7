"""Training data: sources, tokenizers, and a loader that starts at any sequence number.

Read build.py first, then dataset.py. Nothing here imports jax.
"""
