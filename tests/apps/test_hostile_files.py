"""Hostile files: no manifest, image, metadata or member of a tar ends a run or exhausts the memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lavps.apps.bulk.sources import Item, Source
from lavps.apps.service import ModelPool, Options, Refused
from lavps.apps.service.pool import Request
from lavps.cli.listing import image_files
from lavps.io import ImageError, encode_image, read_image
from lavps.restoration.spec import MeasurementSpec
from support.restoring import picture, save, write_prior

ENTRY = {"item": 0, "image_shape": [3, 8, 8], "measurement": "a.png"}
ABOUT = {"task": "denoise", "noise": 0.1, "seed": 0, "measurements": [ENTRY]}
DAMAGED = {
    "nested": "[" * 1_000_000,
    "infinite": json.dumps(ABOUT | {"seed": float("inf")}),
    "negative": json.dumps(ABOUT | {"measurements": [ENTRY | {"image_shape": [3, -8, -8]}]}),
    "text": json.dumps(ABOUT | {"measurements": [ENTRY | {"image_shape": [3, 8.5, "x"]}]}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    save(tmp_path / "data" / "a.png", picture(8, 8))
    return tmp_path / "data"


def items(place: Path) -> dict[str, Item]:
    source = Source.open(str(place))
    return {item.name: item for partition in source.partitions() for item in source.items(partition)}


def require_no_manifest(folder: Path) -> None:
    """Check that images are found and read as if there were no manifest."""
    file = folder / "a.png"
    assert image_files([folder], folder.parent / "out") == [file]
    assert MeasurementSpec("denoise", 0.2).read(file, (3, 8, 8)).measuring.drawn is None
    item = items(folder)["a.png"]
    assert item.content == file.read_bytes()
    assert item.record is None


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_manifest_is_no_manifest(folder: Path, damage: str) -> None:
    (folder / "manifest.json").write_text(DAMAGED[damage])
    require_no_manifest(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_a_folder_are_not_read(folder: Path, kind: str) -> None:
    for name in ("manifest.json", "b.png"):
        if kind == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/dev/full")
    with pytest.raises(ValueError, match=r"b\.png is no regular file"):
        MeasurementSpec("denoise", 0.2).read(folder / "b.png")
    with pytest.raises(ValueError, match=r"b\.png is no regular file"):
        read_image(folder / "b.png")
    assert [*items(folder)] == ["a.png"]
    (folder / "b.png").unlink()
    require_no_manifest(folder)


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def sparse_header(size: int) -> bytes:
    """Return the header of a.png, which has 512 bytes and claims to be one of this size with holes."""
    block = bytearray(header("a.png", 512, tarfile.GNUTYPE_SPARSE))
    for start, number in ((386, 0), (398, 512), (483, size)):
        block[start : start + 12] = tarfile.itn(number, 12, tarfile.GNU_FORMAT)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def packed(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def good_member(folder: Path) -> bytes:
    content = (folder / "a.png").read_bytes()
    return header("good.png", len(content)) + packed(content)


def test_a_sparse_member_allocates_nothing_and_fails_alone(folder: Path) -> None:
    shard = folder / "s.tar"
    shard.write_bytes(sparse_header(1 << 40) + b"x" * 512 + good_member(folder) + bytes(10240))
    found = items(shard)
    assert found["good.png"].content == (folder / "a.png").read_bytes()
    assert "sparse" in found["a.png"].problem


def test_a_member_that_expands_too_far_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lavps.apps.bulk.sources._MOST_BYTES", 1 << 20)
    shard = folder / "s.tar.gz"
    large = header("large.png", 64 << 20) + bytes(64 << 20)
    shard.write_bytes(gzip.compress(large + good_member(folder) + bytes(10240), 1))
    assert shard.stat().st_size < 1 << 20
    found = items(shard)
    assert found["good.png"].content == (folder / "a.png").read_bytes()
    assert "more than 1048576 bytes" in found["large.png"].problem


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_expands_too_far_ends_its_shard(folder: Path, kind: bytes) -> None:
    shard = folder / "s.tar.gz"
    large = header("header", 32 << 20, kind) + b"x" * (32 << 20)
    shard.write_bytes(gzip.compress(good_member(folder) + large + bytes(10240), 1))
    found = items(shard)
    assert found["good.png"].content == (folder / "a.png").read_bytes()
    assert "a header has 33554432 bytes" in found["(s.tar.gz)"].problem


def attributes(**values: str) -> bytes:
    """Return extended attributes of the next member."""
    rows = b""
    for name, value in values.items():
        row = f" {name.replace('_', '.')}={value}\n".encode()
        length = len(row) + 2 if len(row) < 98 else len(row) + 3
        rows += b"%d" % length + row
    return header("attributes", len(rows), tarfile.XHDTYPE) + packed(rows)


@pytest.mark.parametrize("damage", ["map", "text", "nested"])
def test_damaged_headers_end_their_shard_only(folder: Path, damage: str) -> None:
    member = good_member(folder)
    hostile = {
        "map": attributes(GNU_sparse_major="1", GNU_sparse_minor="0") + header("b.png", 512) + b"9" * 512,
        "text": attributes(GNU_sparse_map="x,y") + member,
        "nested": attributes(comment="x") * 5000 + member,
    }[damage]
    shard = folder / "s.tar"
    shard.write_bytes(member + hostile + bytes(10240))
    found = items(shard)
    assert found["good.png"].content == (folder / "a.png").read_bytes()
    assert "the shard is damaged" in found["(s.tar)"].problem


def test_members_never_leave_the_tar(folder: Path) -> None:
    """Links to files of this machine, and paths outside the destination, are not followed."""
    content = (folder / "a.png").read_bytes()
    with tarfile.open(folder / "s.tar", "w") as archive:
        for name, kind in (
            ("link.png", tarfile.SYMTYPE), ("hard.png", tarfile.LNKTYPE), ("device.png", tarfile.CHRTYPE),
            ("../../up.png", tarfile.REGTYPE), ("/root.png", tarfile.REGTYPE), ("good.png", tarfile.REGTYPE),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(folder / "a.png")
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content))
    found = items(folder / "s.tar")
    assert [name for name, item in found.items() if item.content is not None] == ["good.png"]
    assert len(found) == 6


def test_numbers_of_a_measurement_are_finite(folder: Path) -> None:
    for noise in (float("nan"), -1.0, float("inf")):
        about = ABOUT | {"noise": noise}
        (folder / "manifest.json").write_text(json.dumps(about))
        with pytest.raises(ValueError, match="standard deviation"):
            MeasurementSpec().read(folder / "a.png", (3, 8, 8))
    np.save(folder / "b.npy", np.full((3, 8, 8), np.nan, np.float32))
    with pytest.raises(ValueError, match="must be finite"):
        MeasurementSpec("denoise", 0.1).read(folder / "b.npy", (3, 8, 8))


def overlapping(tags: int, size: int, order: str = "<") -> bytes:
    """Return a directory whose entries all have the same data of this size."""
    block = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, tags)
    for tag in range(tags):
        block += struct.pack(f"{order}HHII", 0x1000 + tag, 7, size, 8)
    return block + bytes(4 + size)


def encoded(format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, format, **options)
    return file.getvalue()


def with_segments(exif: bytes) -> bytes:
    """Return a JPEG file whose EXIF extends over several segments, which Pillow joins."""
    parts = [exif[start : start + 60_000] for start in range(0, len(exif), 60_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", 8 + len(part)) + b"Exif\0\0" + part for part in parts]
    return b"\xff\xd8" + b"".join(segments) + encoded("JPEG")[2:]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("format", ["TIFF", "JPEG", "PNG", "WEBP"])
def test_metadata_that_overlap_are_not_expanded(format: str, order: str) -> None:
    """A file of 150 kB describes metadata of 200 MB."""
    exif = overlapping(2000, 100_000, order)
    content = {
        "TIFF": lambda: exif,
        "JPEG": lambda: with_segments(exif),
        "PNG": lambda: encoded("PNG", exif=exif),
        "WEBP": lambda: encoded("WEBP", exif=b"Exif\0\0" + exif),
    }[format]()
    tracemalloc.start()
    try:
        if format in ("TIFF", "JPEG"):  # Pillow expands them when it opens the file
            with pytest.raises(ImageError, match="overlap"):
                read_image(content)
        else:
            image = read_image(content)
            assert image.metadata.exif is None
            assert any("overlap" in note for note in image.notes)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_the_service_does_not_expand_metadata_that_overlap(tmp_path: Path) -> None:
    pool = ModelPool({"plain": (str(write_prior(tmp_path / "prior")), None)})
    options = Options("plain", "denoise", noise=0.05, quality="fast")
    assert pool.measured(Request("a" * 32, encoded("PNG"), options)).like.size == (8, 8)
    tracemalloc.start()
    try:
        for content in (overlapping(2000, 100_000), with_segments(overlapping(2000, 100_000))):
            with pytest.raises(Refused, match="overlap") as refusal:
                pool.measured(Request("a" * 32, content, options))
            assert refusal.value.status == 415
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_compressed_text_does_not_expand_results() -> None:
    """A PNG file of 100 kB with 30 MB of text, which each result would carry."""
    entries = PngInfo()
    for number in range(1000):
        entries.add_text(f"key{number}", "x" * 30_000, zip=True)
    image = read_image(encoded("PNG", pnginfo=entries))
    assert image.metadata.text == ()
    assert any("left out" in note for note in image.notes)
    assert len(encode_image(image.pixels, image, "PNG")) < 1 << 12


def test_sound_metadata_are_kept() -> None:
    exif = Image.Exif()
    exif[0x010F] = "maker"
    exif[0x8769] = {0x9286: b"ASCII\0\0\0" + b"x" * 20_000}
    for format in ("TIFF", "JPEG", "PNG", "WEBP"):
        kept = Image.Exif()
        kept.load(read_image(encoded(format, exif=exif.tobytes())).metadata.exif or b"")
        assert kept[0x010F] == "maker"
        assert len(kept.get_ifd(0x8769)[0x9286]) == 20_008
