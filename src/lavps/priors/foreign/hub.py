"""Where a checkpoint lies: here, or on the Hugging Face Hub, from which only what is needed is fetched."""

from __future__ import annotations

__all__ = ["local_copy", "wanted"]

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_FOLDERS = {"", "unet", "transformer", "vae", "vqvae", "scheduler"}


def wanted(files: Iterable[str]) -> list[str]:
    """Of the files of a repository, those a prior needs.

    Configurations, and per folder of a denoiser or autoencoder one set of weights: safetensors before
    pickles, full precision before half.
    """
    chosen: list[str] = []
    weights: dict[str, dict[int, list[str]]] = {}
    for name in sorted(files):
        path = PurePosixPath(name)
        folder = "" if path.parent == PurePosixPath(".") else str(path.parent)
        if folder not in _FOLDERS:
            continue
        if path.suffix == ".json" or name == "README.md":
            chosen.append(name)
        elif path.suffix in (".safetensors", ".bin", ".pt", ".pkl"):
            rank = (".safetensors", ".bin", ".pt", ".pkl").index(path.suffix)
            reduced = any(part in path.stem.split(".") for part in ("fp16", "bf16", "non_ema"))
            weights.setdefault(folder, {}).setdefault(rank + 10 * reduced, []).append(name)
    for ranks in weights.values():
        chosen += ranks[min(ranks)]
    return chosen


def local_copy(path: str | Path) -> Path:
    """The file or folder itself, or a copy of what a Hub id ("owner/name") names."""
    if Path(path).exists():
        return Path(path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path)):
        raise FileNotFoundError(f"{path} is no file, and neither a model folder nor a Hub id (owner/name)")
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        raise ImportError(f'{path} is nothing here; to fetch it: pip install "lavps[hub]"') from error
    files = wanted(HfApi().list_repo_files(str(path)))
    return Path(snapshot_download(str(path), allow_patterns=files))
