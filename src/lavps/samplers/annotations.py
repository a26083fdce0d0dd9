"""Checks of plain values and of classes against annotated types."""

from __future__ import annotations

__all__ = ["accepts", "fits"]

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ..guidance import Guidance


def accepts(hint: Any, part: type) -> bool:
    """Return whether a field annotated with ``hint`` may hold an object of class ``part``.

    A protocol accepts every class with its methods, except guidance: it has a method called ``draw``, as the
    rules for midpoints have.
    """
    if get_origin(hint) in (Union, UnionType):
        return any(accepts(choice, part) for choice in get_args(hint))
    if not getattr(hint, "_is_protocol", False):
        return isinstance(hint, type) and issubclass(part, hint)
    methods = [name for name in vars(hint) if not name.startswith("_")]
    return not issubclass(part, Guidance) and all(hasattr(part, name) for name in methods)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a plain JSON value has the annotated type; an int is a float, a bool is no int."""
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, choice) for choice in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple and isinstance(value, list):
        items = get_args(hint)
        items = items[:1] * len(value) if items[-1] is Ellipsis else items
        return len(value) == len(items) and all(map(fits, value, items))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return hint in (int, bool, str, NoneType) and type(value) is hint
