"""``python -m lavps.cli``: the command as a module, for launchers such as torchrun."""

__all__ = ["main"]

from . import main

if __name__ == "__main__":
    main()
