"""Optional libraries: imported when used, with advice when missing."""

from __future__ import annotations

__all__ = ["reachable_sockets", "require", "require_ray", "start_ray", "warn_of_sockets"]

import importlib
import ipaddress
import logging
import os
import sys
from typing import Any


def require(module: str, extra: str, reason: str = "") -> Any:
    """Import a module; raise an error with the reason and the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = reason or f"{module.partition('.')[0]} is not installed"
        raise ImportError(f'{reason}: pip install "lavps[{extra}]"') from error


def require_ray(extra: str) -> Any:
    """Import Ray, with quiet logs and no usage statistics unless the environment sets them."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return require("ray", extra)


def start_ray(extra: str, **options: Any) -> Any:
    """Start Ray on this machine, bound to the loopback address and with token authentication.

    Sockets that other machines can reach nevertheless are listed on stderr. The reason is usually that Ray
    was imported earlier, with other settings.

    Args:
        extra: Extra that installs Ray.
        options: Arguments of ``ray.init``.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
        "0"  # Ray then accepts the loopback address on Linux too
    )
    ray = require_ray(extra)
    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", logging_level=logging.ERROR, **options)
    warn_of_sockets()
    return ray


def warn_of_sockets(public: int = 0) -> None:
    """List sockets of Ray that other machines can reach on stderr, without the port that is meant to be."""
    if names := ", ".join(name for name in reachable_sockets() if f":{public} " not in name):
        print(f"warning: other machines can reach these sockets of Ray: {names}", file=sys.stderr)


def reachable_sockets() -> list[str]:
    """Return the listening sockets of this process and its children that are not bound to loopback."""
    psutil = importlib.import_module("psutil")  # Ray brings it along
    found = set()
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            connections = process.net_connections(kind="inet")
        except psutil.Error:  # ended meanwhile, or of another user
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN:
                address = ipaddress.ip_address(connection.laddr.ip)
                mapped = getattr(address, "ipv4_mapped", None) or address
                if not mapped.is_loopback:
                    found.add(f"{connection.laddr.ip}:{connection.laddr.port} ({process.name()})")
    return sorted(found)
