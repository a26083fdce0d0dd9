"""What is in deploy/ is of the form its readers want, and its commands are commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import tyro

from lavps.cli.restore_bulk import RestoreBulk

yaml = pytest.importorskip("yaml")
jsonschema = pytest.importorskip("jsonschema")
DEPLOY = Path(__file__).parents[1].parent / "deploy"


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def parsed(command: str) -> RestoreBulk:
    words = shlex.split(command)
    assert words[:2] == ["lavps", "restore-bulk"]
    return tyro.cli(RestoreBulk, args=words[2:])


def test_the_cluster_is_what_the_launcher_of_ray_wants() -> None:
    ray = pytest.importorskip("ray")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    cluster = read("ray-cluster.yaml")
    jsonschema.validate(cluster, schema)
    assert cluster["head_node_type"] in cluster["available_node_types"]
    comment = "".join(
        line.removeprefix("#").strip().removesuffix("\\") + " "
        for line in (DEPLOY / "ray-cluster.yaml").read_text().splitlines()
        if line.startswith("#")
    )
    command = comment.partition('"lavps')[2].partition('"')[0]
    assert parsed(f"lavps{command}").cluster.address == "auto"


def test_the_job_is_one_of_kuberay() -> None:
    job = read("rayjob.yaml")
    containers = {"type": "array", "minItems": 1, "items": {"required": ["name", "image", "resources"]}}
    template = {
        "properties": {"template": {"properties": {"spec": {"properties": {"containers": containers}}}}},
        "required": ["template", "rayStartParams"],
    }
    workers = {"type": "array", "minItems": 1, "items": template | {"required": ["groupName", "template"]}}
    cluster = {
        "properties": {"headGroupSpec": template, "workerGroupSpecs": workers},
        "required": ["headGroupSpec", "workerGroupSpecs", "rayVersion"],
    }
    schema = {
        "properties": {
            "apiVersion": {"const": "ray.io/v1"},
            "kind": {"const": "RayJob"},
            "spec": {"properties": {"rayClusterSpec": cluster}, "required": ["entrypoint", "rayClusterSpec"]},
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
    }
    jsonschema.validate(job, schema)
    run = parsed(job["spec"]["entrypoint"])
    group = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert run.cluster.workers == group["maxReplicas"]
    assert run.max_failure_rate == 0.05


def test_clusters_authenticate_with_a_token() -> None:
    assert read("rayjob.yaml")["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    cluster = read("ray-cluster.yaml")
    assert "~/.ray/auth_token" in cluster["file_mounts"]
    starts = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    assert all(line.startswith("RAY_AUTH_MODE=token ") for line in starts if "ray start" in line)


def test_the_ports_of_ray_are_open_to_the_cluster_only() -> None:
    policy = read("network-policy.yaml")
    assert (policy["apiVersion"], policy["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    ray = {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    assert policy["spec"]["podSelector"] == ray
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    within, submission = policy["spec"]["ingress"]
    assert within == {"from": [{"podSelector": ray}]}
    assert submission["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert all(peer["podSelector"] for peer in submission["from"])  # an empty one would admit every pod
