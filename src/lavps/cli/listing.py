"""The input files of a command: named files, and the images in named folders."""

from __future__ import annotations

__all__ = ["absolute", "image_files"]

from collections.abc import Sequence
from pathlib import Path

from ..image_formats import SUFFIXES, is_image
from ..io.regular import read_file
from ..restoration.degraded import degraded_records


def absolute(path: str) -> str:
    """Return an existing path as an absolute one, and anything else (a Hub id) unchanged."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def image_files(paths: Sequence[Path], output: Path) -> list[Path]:
    """Return the image files, those of a folder sorted by name.

    A folder written by ``lavps degrade`` gives its measurements, not the images that show them.

    Raises:
        ValueError: There are none, two files share a stem, or the output would overwrite them.
    """
    if not paths:
        raise ValueError("name the images, or their folder")
    files: list[Path] = []
    for path in paths:
        files += _images_in(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"no {', '.join(sorted(SUFFIXES))} files in {', '.join(map(str, paths))}")
    stems = [file.stem for file in files]
    for file in files:
        if stems.count(file.stem) > 1:
            raise ValueError(f"several images are called {file.stem}: outputs need distinct names")
        if file.resolve().parent == output.resolve():
            raise ValueError(f"--output {output} holds the images themselves, which would be overwritten")
    return files


def _images_in(folder: Path) -> list[Path]:
    try:
        _, sources = degraded_records(read_file(folder / "manifest.json"))
    except (OSError, ValueError):
        sources = {}
    previews = {image for image, measurement in sources.items() if (folder / measurement).is_file()}
    return sorted(file for file in folder.iterdir() if is_image(file.name) and file.name not in previews)
