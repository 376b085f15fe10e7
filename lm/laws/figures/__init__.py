"""Figures of runs, laws and plans: one file a family, each a pure function of tables and fits.

Every public function returns a matplotlib Figure, made with the object interface so that no window
system and no global state is touched; lm/laws/figures/style.py holds the one look and the writing
to PNG and SVG. matplotlib is imported where a figure is drawn, never when this package is.
"""
