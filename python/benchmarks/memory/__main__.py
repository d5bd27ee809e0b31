"""Runs one part in this process: ``python -m benchmarks.memory PART SETUP``."""

from .parts import child

if __name__ == "__main__":
    child()
