"""Which files a command is to work on: those named, and the images of the folders named."""

from __future__ import annotations

__all__ = ["absolute", "image_files"]

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..restoration.arrays import degraded_records

_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".npy"}


def absolute(place: str) -> str:
    """A path that every process understands; what is none, such as a Hub id, as it is."""
    return str(Path(place).resolve()) if Path(place).exists() else place


def image_files(paths: Sequence[Path], output: Path) -> list[Path]:
    """The image files, those of folders by name.

    In a folder of ``lavps degrade`` the measurements are taken, not the pictures of them.

    Raises:
        ValueError: there are none, two of one stem would be written to one place, or the output would
            overwrite them.
    """
    if not paths:
        raise ValueError("name the images, or their folder")
    files = list(_expanded(paths))
    if not files:
        raise ValueError(f"no {', '.join(sorted(_SUFFIXES))} files in {', '.join(map(str, paths))}")
    stems = [file.stem for file in files]
    for file in files:
        if stems.count(file.stem) > 1:
            raise ValueError(f"several images are called {file.stem}: what is written needs names of its own")
        if file.resolve().parent == output.resolve():
            raise ValueError(f"--output {output} holds the images themselves, which would be overwritten")
    return files


def _expanded(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            shown = _pictures_of_measurements(path)
            yield from sorted(
                file
                for file in path.iterdir()
                if file.suffix.lower() in _SUFFIXES
                and file.name not in shown
                and not file.name.startswith(".")
            )
        else:
            yield path


def _pictures_of_measurements(folder: Path) -> set[str]:
    try:
        _, shown = degraded_records((folder / "manifest.json").read_bytes())
    except OSError:
        return set()
    return {picture for picture, measurement in shown.items() if (folder / measurement).is_file()}
