"""Variants of bridges on the same modes: what they are, how they are trained and scored, and their table."""
