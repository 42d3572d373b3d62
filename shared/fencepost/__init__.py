"""Fencepost: a worker fleet for agent runs whose effects happen at most once per business intent."""

__version__ = "0.1.0"
