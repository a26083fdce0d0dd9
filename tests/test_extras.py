"""Ray, started here, is reachable from this machine only; its processes have no secrets of the service."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lavps.apps.service.serving import Serving, bind_replica_to_loopback
from lavps.extras import reachable_sockets, warn_of_sockets

SCRIPT = """
import os, sys
from lavps.extras import reachable_sockets, start_ray
ray = start_ray("bulk", num_cpus=1, object_store_memory=80 << 20, log_to_driver=False)
assert ray.util.get_node_ip_address() == "127.0.0.1"
mode = ray.get(ray.remote(lambda: os.environ["RAY_AUTH_MODE"]).remote())
assert mode == "token", mode
assert reachable_sockets() == [], reachable_sockets()
ray.shutdown()
"""


@pytest.mark.slow
def test_ray_is_bound_to_loopback() -> None:
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr


def test_sockets_that_other_machines_reach_are_found() -> None:
    pytest.importorskip("psutil")
    with socket.socket() as closed, socket.socket() as opened:
        closed.bind(("127.0.0.1", 0))
        opened.bind(("0.0.0.0", 0))
        closed.listen()
        opened.listen()
        found = " ".join(reachable_sockets())
        assert f"0.0.0.0:{opened.getsockname()[1]} " in found
        assert f"127.0.0.1:{closed.getsockname()[1]} " not in found


def test_the_token_of_the_service_stays_out_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.serve")
    seen: dict[str, Any] = {}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("LAVPS_TOKEN", "sesame")

    class FakeServe:
        @staticmethod
        def start(**options: Any) -> None:
            seen["start"] = options

        @staticmethod
        def run(application: Any, **options: Any) -> None:
            seen["run"] = options

        @staticmethod
        def ingress(front: Any) -> Any:
            return lambda: front

        @staticmethod
        def deployment(target: Any, name: str, **options: Any) -> Any:
            class Bound:
                @staticmethod
                def bind(*arguments: Any) -> Any:
                    seen[name] = arguments
                    return name

            return Bound

    def start_ray(extra: str, **options: Any) -> None:
        seen["environment"] = dict(os.environ)

    monkeypatch.setattr("lavps.apps.service.serving.start_ray", start_ray)
    monkeypatch.setattr("lavps.apps.service.serving.warn_of_sockets", lambda port: None)
    monkeypatch.setattr("threading.Event.wait", lambda event: None)
    monkeypatch.setattr("lavps.apps.service.serving.require", lambda name, extra: FakeServe)
    monkeypatch.setenv("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "")
    Serving({}, tmp_path, token="sesame").run()
    assert "LAVPS_TOKEN" not in seen["environment"]
    assert seen["sampler"][0].token is None
    assert seen["environment"]["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].endswith("proxy_middlewares")


def test_the_server_of_a_replica_is_bound_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = pytest.importorskip("ray.serve._private.replica")
    if not hasattr(replica, "add_port_to_grpc_server"):
        pytest.skip("another version of Ray")
    bound: list[str] = []
    monkeypatch.setattr(replica, "add_port_to_grpc_server", lambda server, address: bound.append(address))
    for node in ("192.0.2.2", "127.0.0.1"):  # of a cluster, and of this machine
        monkeypatch.setattr("ray.util.get_node_ip_address", lambda node=node: node)
        bind_replica_to_loopback()
        replica.add_port_to_grpc_server(None, "[::]:0")
    assert bound == ["[::]:0", "127.0.0.1:0"]


def test_remaining_sockets_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sockets = ["0.0.0.0:8000 (python)", ":::80001 (raylet)"]
    monkeypatch.setattr("lavps.extras.reachable_sockets", lambda: sockets)
    warn_of_sockets(8000)
    assert capsys.readouterr().err.endswith("sockets of Ray: :::80001 (raylet)\n")
