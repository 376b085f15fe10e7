"""Starting runs on machines: may import lm and experiments."""
