"""Middlewares in front of the service: checks of token, origin and length, hiding of Ray's paths, limits.

Paths are those of the ASGI scope, which the routing uses too. The URL of a request object is built from the
Host header, which the client chooses.
"""

from __future__ import annotations

__all__ = [
    "PUBLIC",
    "FramingGuard",
    "HiddenPaths",
    "LoopbackGuard",
    "TokenGuard",
    "is_loopback",
    "proxy_middlewares",
    "timed_protocol",
]

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
PUBLIC = "/healthz"  # the only path that needs no token


class TokenGuard:
    """Middleware that refuses every request without the token, except for :data:`PUBLIC`.

    Args:
        app: Application behind the guard.
        token: Bearer token required of requests.
    """

    def __init__(self, app: App, token: str) -> None:
        self.app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Forward a request, or answer it with 401."""
        if scope["type"] == "lifespan" or scope["path"] == PUBLIC or self._has_token(scope):
            await self.app(scope, receive, send)
        else:
            reason = "the token is missing or invalid"
            await _refuse(scope, send, 401, reason, [(b"www-authenticate", b"Bearer")])

    def _has_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


class LoopbackGuard:
    """Middleware of a service without a token: it refuses requests that a web page of another site caused.

    A browser sends such a request with the Origin of the page. If the name of the page was redirected to this
    machine (DNS rebinding), the Host header has that name. Both must therefore belong to this machine.

    Args:
        app: Application behind the guard.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Forward a request, or answer it with 403."""
        if scope["type"] == "lifespan" or self._is_own(scope):
            await self.app(scope, receive, send)
        else:
            await _refuse(
                scope, send, 403, "a service without a token accepts requests to 127.0.0.1 only", []
            )

    @staticmethod
    def _is_own(scope: Scope) -> bool:
        hosts, origins = (
            [value.decode("latin-1") for key, value in scope["headers"] if key == name]
            for name in (b"host", b"origin")
        )
        if len(hosts) != 1 or not is_loopback(_name(f"//{hosts[0]}")):
            return False
        return all(origin == f"http://{hosts[0]}" for origin in origins)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is that of this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


class FramingGuard:
    """Middleware that refuses a request whose length is stated in two ways (request smuggling).

    A proxy in front may use one of them and the service the other. The rest of the body would then be a
    second request, on a connection that other clients share. The connection is closed.

    Args:
        app: Application behind the guard.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Forward a request, or answer it with 400."""
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            reason = "Content-Length and Transfer-Encoding exclude each other"
            await _refuse(scope, send, 400, reason, [(b"connection", b"close")])
        else:
            await self.app(scope, receive, send)


class HiddenPaths:
    """Middleware of Ray's HTTP proxy that answers 404 to the paths of Ray itself (``/-/routes``).

    Args:
        app: Application behind the middleware.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Forward a request, or answer it with 404."""
        if scope["type"] != "lifespan" and scope["path"].startswith("/-/"):
            await _refuse(scope, send, 404, "there is no such path", [])
        else:
            await self.app(scope, receive, send)


def proxy_middlewares() -> list[Any]:
    """Return the middlewares of Ray's HTTP proxy, which imports this function by its name."""
    from starlette.middleware import Middleware

    return [Middleware(HiddenPaths)]


def timed_protocol(seconds: float) -> type[Any]:
    """Return uvicorn's HTTP protocol, with a limit of the time in which the headers of a request arrive."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            """Wait for the first request."""
            super().connection_made(transport)
            self._expect_other_than(None)

        def on_response_complete(self) -> None:
            """Wait for the next request."""
            answered = self.cycle
            super().on_response_complete()
            self._expect_other_than(answered)

        def _expect_other_than(self, answered: Any) -> None:
            def give_up() -> None:
                if self.cycle is answered:
                    self.transport.close()

            self.loop.call_later(seconds, give_up)

    return TimedProtocol


async def _refuse(
    scope: Scope, send: Any, status: int, reason: str, headers: list[tuple[bytes, bytes]]
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
