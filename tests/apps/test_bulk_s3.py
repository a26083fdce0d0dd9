"""Shards on an object store: read from a bucket, restored, written to another, with nothing on this disk."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from PIL import Image

from lavps.apps.bulk.stores import Store
from lavps.cli import main
from support.restoring import picture, write_prior

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.slow


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> object:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    import s3fs

    system = s3fs.S3FileSystem()
    system.mkdir("measured")
    system.mkdir("restored")
    yield system
    server.terminate()
    server.wait(30)


def test_shards_go_from_bucket_to_bucket(
    buckets: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = write_prior(tmp_path / "prior")
    for shard in range(2):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for number in range(5):
                image = io.BytesIO()
                Image.fromarray(picture(8, 8, seed=10 * shard + number)).save(image, "PNG")
                member = tarfile.TarInfo(f"{number}.png")
                member.size = image.tell()
                image.seek(0)
                archive.addfile(member, image)
        Store("s3://measured/shards").write(f"{shard}.tar", file.getvalue())
    words = ["--prior", str(prior), "--task", "denoise", "--noise", "0.05", "--device", "cpu"]
    words += ["--workers", "0", "--batch-size", "4"]
    for kind in ("tar", "files"):
        for fresh in (10, 0):
            main(["restore-bulk", "s3://measured/shards", f"s3://restored/{kind}", "--format", kind, *words])
            assert f"10 of 10 images are restored, {fresh} of them now" in capsys.readouterr().out
    names = Store("s3://restored").names()
    assert {"tar/0.tar", "tar/1.tar", "tar/report.html", "files/0/3.png", "files/1/4.png"} <= set(names)
    assert not [name for name in names if name.endswith((".jsonl", ".partial"))]
    content = io.BytesIO(Store("s3://restored").read("tar/1.tar"))
    with tarfile.open(fileobj=content) as archive:
        packed = archive.extractfile("2.png")
        assert packed is not None
        assert packed.read() == Store("s3://restored").read("files/1/2.png")
