"""Local copies of checkpoints: paths, models of the installed zoo, and downloads from the Hub."""

from __future__ import annotations

__all__ = ["download", "local_copy", "wanted"]

import difflib
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..extras import require
from .zoo import zoo_model, zoo_names

_SECONDS = 10  # time limit of a request for metadata
_FOLDERS = {"", "unet", "transformer", "vae", "vqvae", "scheduler"}


def wanted(files: Iterable[str]) -> list[str]:
    """Return those of a repository's files that a prior needs.

    They are the configurations and one set of weights per folder of a denoiser or autoencoder: safetensors
    rather than pickles, full precision rather than half.
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
    """Return the local files of a model: an existing path, a model of the installed zoo, or a Hub download.

    Raises:
        FileNotFoundError: None of the three has it; the message is one line.
    """
    return Path(path) if Path(path).exists() else zoo_model(path) or download(path)


def download(path: str | Path, files: list[str] | None = None) -> Path:
    """Download files of a Hub repository, by default those a prior needs, and return the local folder.

    Without a connection an earlier download is used.

    Raises:
        FileNotFoundError: The path is no Hub id, or the Hub cannot be reached or has no such repository.
    """
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path)):
        raise FileNotFoundError(
            f"{path} is no file{_meant(Path(path))}, and neither a model folder nor a Hub id (owner/name); "
            f"{_installed()}"
        )
    hub = require("huggingface_hub", "hub", f"{path} does not exist; to download it")
    try:
        # One request before snapshot_download, which repeats failed ones for half a minute.
        listed = hub.HfApi().model_info(str(path), timeout=_SECONDS).siblings or []
        files = files or wanted(file.rfilename for file in listed)
        return Path(hub.snapshot_download(str(path), allow_patterns=files, etag_timeout=_SECONDS))
    except Exception as error:  # the classes are those of an HTTP library that changes between versions
        try:
            return Path(hub.snapshot_download(str(path), local_files_only=True))
        except Exception:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise FileNotFoundError(
                f"{path} is no local file or folder{_meant(Path(path))}, and the Hub did not provide it "
                f"({type(error).__name__}: {reason}); {_installed()}"
            ) from None


def _meant(path: Path) -> str:
    """Return a question with the path of a file or folder beside it whose name is close, if there is one."""
    names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, 1)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""


def _installed() -> str:
    names = zoo_names()
    return (
        f"installed models are {', '.join(names)}"
        if names
        else "no models are installed by name: pip install ./zoo in a checkout"
    )
