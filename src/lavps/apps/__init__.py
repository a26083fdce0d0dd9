"""Applications on top of the library: bulk restoration, a service, a demonstration."""

__all__ = []
