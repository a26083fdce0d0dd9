"""``python -m lavps.cli``: the command where a launcher such as torchrun wants a module."""

from __future__ import annotations

__all__ = ["main"]

from . import main

if __name__ == "__main__":
    main()
