"""Entry points: each file defines its flags and makes one call into lm."""
