"""Folders of many small measurements, some of them broken in every way, for the tests of bulk restoration."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

import lavps
from lavps.checkpoints.folder import ModelConfig, save_model
from lavps.nn import build_seeded
from support.restoring import TINY, perturb, picture, save


def write_sized_prior(folder: Path, size: int) -> Path:
    """A tiny prior of colour images of this size."""
    description = TINY | {"in_channels": 3, "out_channels": 3}
    network = build_seeded(description, 0)
    perturb(network)
    config = ModelConfig("prior", description, lavps.Flow(), (3, size, size), "velocity", "time")
    save_model(folder, network, config)
    return folder


def _encoded(format: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(16, 16)).save(file, format, **options)
    return file.getvalue()


def _png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header claims this size, and has nothing more."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def _array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def broken_files() -> dict[str, bytes]:
    """Ten files that are no measurements, each for a reason of its own."""
    frames = [Image.fromarray(picture(8, 8, seed=n)) for n in range(2)]
    animation = io.BytesIO()
    frames[0].save(animation, "WEBP", save_all=True, append_images=frames[1:])
    return {
        "animated.webp": animation.getvalue(),
        "bomb.png": _png_of_size(60_000, 60_000),
        "cut.jpg": _encoded("JPEG")[:200],
        "cut.png": _encoded("PNG")[:200],
        "empty.png": b"",
        "gif.png": _encoded("GIF"),
        "nan.npy": _array(np.full((3, 8, 8), np.nan, np.float32)),
        "shape.npy": _array(np.zeros((5, 4, 3, 2), np.float32)),
        "text.jpg": b"this is no image at all",
        "zip.tif": b"PK\x03\x04" + bytes(64),
    }


def fill(folder: Path, count: int, size: int = 8) -> Path:
    """A folder of ``count`` files in three subfolders, ten of which are broken."""
    broken = broken_files()
    for number in range(count - len(broken)):
        place = folder / f"{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        save(place / f"{number:04d}.png", picture(size, size, seed=number))
    for name, content in broken.items():
        (folder / "1" / name).write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Hash of every file that was restored, by name."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.relative_to(folder).parts[0] not in ("manifest", "_lavps", "report.html")
    }
