"""Variants of bridges on the same modes: their definition, training, scores and table."""
