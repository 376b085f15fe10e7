"""Many runs and what they say: points of a sweep, the table of runs, the answer drawn from it."""
