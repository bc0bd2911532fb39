"""Numerics, engines and decisions of the RLHF pipeline; a library that works without Prefect."""

__version__ = "0.1.0"
