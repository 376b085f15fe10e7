"""The library. Imports nothing from experiments or launch."""
