"""The first hour of a new user: commands with right and wrong inputs in an empty folder, and a large photograph.

    python -m recipes.first_hour.run --data DATA

DATA holds ``photos-test.tar``. Every command is a new process; its exit status, CPU time, peak memory and output are
recorded. The large photograph is restored twice: once without a break, once killed and started again.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tyro
from PIL import Image

from lavps.benchmark.report import markdown_table

from ..common.pages import read, write_json, write_page

Record = dict[str, Any]
PRIOR = "--prior zoo/photos64"
FIRST = f"restore grainy.png --task denoise {PRIOR}"
# What a new user wants or does, and the command.
STEPS = (
    ("an overview", "--help"),
    ("is everything installed?", "doctor"),
    ("a measurement to try", "degrade photo.png --task sr2 --noise 0.05 --output measured"),
    ("its restoration, by its manifest", f"restore measured {PRIOR} --evaluations 4 --output enlarged"),
    ("what would happen?", f"{FIRST} --noise 0.2 --dry-run"),
    ("a result at once, noise unknown", f"{FIRST} --evaluations 1"),
    ("again, into the same folder", f"{FIRST} --evaluations 1"),
    ("two samples", f"{FIRST} --noise 0.2 --evaluations 4 --samples 2 --output samples"),
    ("a task with a typing error", f"restore grainy.png --task denois {PRIOR}"),
    ("a factor that is no integer", f"restore grainy.png --task sr5.5 {PRIOR}"),
    ("a prior that is not there", "restore grainy.png --task denoise --prior photos65"),
    ("a GPU that is not there", f"{FIRST} --device cuda"),
    ("text instead of an image", f"restore notes.png --task denoise {PRIOR}"),
    ("noise of a JPEG file", f"restore photo.jpg --task denoise {PRIOR}"),
    (
        "JPEG artefacts, tables of the file",
        f"restore photo.jpg --task jpeg --noise 0.02 {PRIOR} --evaluations 4 --output jpeg",
    ),
    ("an output that is the input", f"{FIRST} --evaluations 1 --output grainy.png"),
    (
        "a photograph of full size, to be enlarged",
        f"restore large.png --task sr4 --noise 0.02 {PRIOR} --dry-run",
    ),
    (
        "a photograph under the prior of faces",
        "restore grainy.png --task denoise --noise 0.2 --prior zoo/synthfaces64 --evaluations 4 --output faces",
    ),
    (
        "a mask drawn the other way round",
        f"restore photo.png --task inpaint --mask mask.png --noise 0 {PRIOR} --evaluations 1 --output inpainted",
    ),
    ("an operator file without an operator", f"restore grainy.png --task my_ops.py --noise 0.1 {PRIOR}"),
)
# A command that writes the peak of its own memory to a file: the one that the system reports includes its parent's.
COMMAND = """
import atexit, os, pathlib, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: pathlib.Path(os.environ["STATUS"]).write_text(status.read_text()))
from lavps.cli import main
main(sys.argv[1:])
"""
STATUS = "status.txt"
LARGE = f"restore large.png --task denoise --noise 0.1 {PRIOR}"


@dataclass(frozen=True)
class Config:
    """Settings of the trial."""

    data: Path = Path("data")
    """Folder of the tar."""
    zoo: Path = Path("zoo")
    """Folder of the trained models."""
    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    large: tuple[int, int] = (3000, 2000)
    """Width and height of the large photograph."""
    evaluations: tuple[int, ...] = (1,)
    """Denoiser evaluations of the large photograph, one run each."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without running anything."""


def start(words: str, folder: Path) -> subprocess.Popen[str]:
    """Start ``lavps WORDS`` in a folder."""
    (folder / STATUS).unlink(missing_ok=True)
    environment = os.environ | {"COLUMNS": "82", "OMP_NUM_THREADS": "1", "STATUS": str(folder / STATUS)}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *shlex.split(words)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], words: str, folder: Path, before: str = "") -> Record:
    """Wait for a command and return what it used and printed."""
    assert process.stdout is not None
    text = before + process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "command": f"lavps {words}",
        "status": process.returncode,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_gb": peak(folder / STATUS),
        "output": shown(text),
    }


def peak(status: Path) -> float | None:
    """Return the peak of the memory in GB, None if the process was killed."""
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return None if found is None else round(int(found[1]) / 1e6, 2)


def shown(text: str) -> str:
    """Return an output without the lines that a progress bar overwrites."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and "%|" not in line and "step/s" not in line)


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Return the CPU time that a running process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has ended; what it used can still be read."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def until_line(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Return the first line of a running command, and its CPU time at that moment."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return line, round(cpu_seconds(process), 1)


def prepare(config: Config, folder: Path) -> None:
    """Write the files of the trial: a photograph, the same as JPEG, a text, a mask, a large photograph, the zoo."""
    with tarfile.open(config.data / "photos-test.tar") as file:
        members = sorted((m for m in file.getmembers() if m.isfile()), key=lambda m: m.name)
        images = [Image.open(file.extractfile(m) or sys.exit(m.name)).convert("RGB") for m in members[:36]]
    photograph = images[0].crop((0, 0, 240, 160))
    photograph.save(folder / "photo.png")
    photograph.save(folder / "photo.jpg", quality=20)
    noisy(photograph, 0.2).save(folder / "grainy.png")
    (folder / "notes.png").write_text("No image.\n")
    (folder / "my_ops.py").write_text("blur = 3\n")
    damaged = np.zeros((160, 240), np.uint8)
    damaged[70:74] = 255  # white where the photograph is damaged: the opposite of the convention
    Image.fromarray(damaged).save(folder / "mask.png")
    mosaic(images, config.large).save(folder / "large.png")
    (folder / "zoo").symlink_to(config.zoo.resolve())


def mosaic(images: Sequence[Image.Image], size: tuple[int, int]) -> Image.Image:
    """Return photographs side by side, at their own resolution, as one noisy image of a size."""
    picture = Image.new("RGB", size)
    upright = [image.rotate(90, expand=True) if image.height > image.width else image for image in images]
    width, height = min(i.width for i in upright), min(i.height for i in upright)
    spots = [(x, y) for y in range(0, size[1], height) for x in range(0, size[0], width)]
    for number, spot in enumerate(spots):
        picture.paste(upright[number % len(upright)], spot)
    return noisy(picture, 0.1)


def noisy(image: Image.Image, std: float) -> Image.Image:
    """Return an image with white noise; the standard deviation is that of pixels in [-1, 1]."""
    pixels = np.asarray(image, np.float64)
    noise = np.random.default_rng(0).normal(0, std * 127.5, pixels.shape)
    return Image.fromarray((pixels + noise).round().clip(0, 255).astype(np.uint8))


def restore_large(folder: Path, evaluations: int) -> list[Record]:
    """Restore the large photograph without a break, then killed and started again."""
    words = f"{LARGE} --evaluations {evaluations} --output whole{evaluations}"
    process = start(words, folder)
    line, forecast = until_line(process)
    whole = finish(process, words, folder, line) | {
        "forecast_cpu_seconds": forecast,
        "step": "a large photograph",
    }
    words = words.replace("whole", "broken")
    process = start(words, folder)
    output = folder / f"broken{evaluations}"
    while not has_ended(process) and not list(output.glob(".large.state*")):
        time.sleep(0.2)
    time.sleep(2.0)  # some windows more
    process.send_signal(signal.SIGKILL)
    killed = finish(process, words, folder) | {"step": "the same, killed"}
    resumed = finish(start(words, folder), words, folder) | {"step": "the same command again"}
    whole_image = folder / f"whole{evaluations}" / "large.png"
    resumed["identical"] = (output / "large.png").read_bytes() == whole_image.read_bytes()
    return [whole, killed, resumed]


def measure(config: Config) -> dict[str, Any]:
    """Run all commands in a folder of degraded files."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        prepare(config, folder)
        steps = []
        for step, words in STEPS:
            steps.append(finish(start(words, folder), words, folder) | {"step": step})
            print(
                f"{step}: {steps[-1]['status']}, {steps[-1]['cpu_seconds']} s\n{steps[-1]['output']}\n",
                flush=True,
            )
        large = [record for count in config.evaluations for record in restore_large(folder, count)]
    return {"steps": steps, "large": large, "size": config.large}


def fields(found: dict[str, Any]) -> dict[str, str]:
    """Return the fields of the page's template."""
    head = ["step", "command", "status", "CPU seconds", "peak, GB"]
    rows = [
        [r["step"], f"`{r['command']}`", str(r["status"]), f"{r['cpu_seconds']:.1f}", f"{r['peak_gb']:.2f}"]
        for r in found["steps"]
    ]
    large = [
        [
            r["step"],
            re.findall(r"--evaluations (\d+)", r["command"])[0],
            "killed" if r["status"] < 0 else str(r["status"]),
            f"{r['cpu_seconds']:.0f}",
            "" if r["peak_gb"] is None else f"{r['peak_gb']:.2f}",
            f"{r['forecast_cpu_seconds']:.1f}" if "forecast_cpu_seconds" in r else "",
            {True: "yes", False: "no", None: ""}[r.get("identical")],
        ]
        for r in found["large"]
    ]
    titles = ["step", "evaluations", "status", "CPU seconds", "peak, GB", "forecast after, CPU seconds"]
    return {
        "table": markdown_table(head, rows),
        "large": markdown_table([*titles, "identical bytes"], large),
        "size": " x ".join(str(side) for side in found["size"]),
        "outputs": "\n\n".join(
            f"**{r['step']}**\n\n```text\n{narrow('$ ' + r['command'])}\n{narrow(r['output'])}\n```"
            for r in [*found["steps"], *found["large"]]
        ),
    }


def narrow(text: str, lines: int = 14) -> str:
    """Return a text of 84 columns, without what follows its first lines."""
    parts = [part for line in text.splitlines() for part in textwrap.wrap(line, 84, subsequent_indent="    ")]
    return "\n".join(parts[:lines] + ["..."] * (len(parts) > lines))


def main(config: Config) -> None:
    """Run the trial, or read what it recorded, and write the page."""
    found = read(config.pages, "first_hour") if config.page_only else measure(config)
    write_json(config.pages, "first_hour", found)
    write_page(config.pages, "first_hour", **fields(found))


if __name__ == "__main__":
    main(tyro.cli(Config))
