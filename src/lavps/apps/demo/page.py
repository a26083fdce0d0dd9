"""The page of the demonstration, made with Gradio."""

from __future__ import annotations

__all__ = ["build_page"]

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...extras import require
from ...restoration.presets import Quality
from .demonstration import SHOWN, TASKS, DemoMeasurement, Demonstration, Frame, Pixels

_CANVAS, _BRUSH = 512, 48  # longer side of an example, and width of the brush, in pixels


def _drawn(edited: Any) -> tuple[Pixels | None, npt.NDArray[np.bool_] | None]:
    """Return the image in the editor, and the mask of the strokes, cropped to its centre like the image."""
    if not edited or edited.get("background") is None:
        return None, None
    background = np.asarray(edited["background"])[..., :3].astype(np.uint8)
    strokes = [np.asarray(layer)[..., 3] > 0 for layer in edited.get("layers", []) if layer is not None]
    if not strokes:
        return background, None
    mask = np.any(strokes, axis=0)
    side = min(mask.shape)
    top, left = (mask.shape[0] - side) // 2, (mask.shape[1] - side) // 2
    return background, mask[top : top + side, left : left + side]


def build_page(demonstration: Demonstration, examples: list[Path]) -> Any:
    """Build the page, ready to be launched."""
    gr = require("gradio", "demo")
    names = list(demonstration.methods("fast"))

    def measure(edited: Any, task: str, strength: float, noise: float) -> Any:
        image, mask = _drawn(edited)
        if image is None:
            raise gr.Error("upload an image, or choose an example")
        return demonstration.measured(image, DemoMeasurement(task, strength, noise, mask))

    def preview(edited: Any, task: str, strength: float, noise: float) -> Any:
        return None if _drawn(edited)[0] is None else measure(edited, task, strength, noise)[1]

    def restore(
        edited: Any, task: str, strength: float, noise: float, samples: float, quality: Quality, seed: float
    ) -> Iterator[Any]:
        problem, degraded = measure(edited, task, strength, noise)
        shows: dict[str, Frame] = {}
        for name in names:
            for show in demonstration.run(problem, name, int(samples), quality, int(seed)):
                shows[name] = show
                if show.done or show.step % 5 == 0:
                    yield degraded, *_cells(shows, names, 1), list(shows.values())

    def turn(shows: list[Frame], number: float) -> Any:
        return _cells({show.name: show for show in shows or []}, names, int(number))

    with gr.Blocks(title="lavps") as page:
        gr.Markdown(
            "# lavps\nAn image is measured, and images that explain the measurement are sampled. One sample "
            "is one plausible image, not the truth: look at the uncertainty."
        )
        shows = gr.State([])
        with gr.Row():
            with gr.Column(scale=1):
                edited = gr.ImageEditor(
                    label="image; paint over the missing part",
                    type="numpy",
                    height=360,
                    brush=gr.Brush(default_size=_BRUSH, colors=["#cc3333"]),
                )
                task = gr.Radio(list(TASKS), value=TASKS[0], label="measurement")
                strength = gr.Slider(0, 1, 0.5, step=0.05, label="strength")
                noise = gr.Slider(0.01, 0.3, 0.05, step=0.01, label="noise (0.05 is 6 grey levels of 255)")
                samples = gr.Slider(2, 8, 4, step=1, label="samples")
                quality = gr.Radio(["fast", "balanced", "best"], value="fast", label="quality")
                seed = gr.Number(0, label="seed", precision=0)
                button = gr.Button("Restore", variant="primary")
            with gr.Column(scale=3):
                degraded = gr.Image(label="measured", height=SHOWN, width=SHOWN, show_label=True)
                cells = []
                for name in names:
                    clock = gr.Markdown(f"**{name}**")
                    with gr.Row():
                        images = [
                            gr.Image(label=f"{name}: {what}", height=SHOWN)
                            for what in ("sample", "mean", "uncertainty")
                        ]
                    cells += [clock, *images]
                number = gr.Slider(1, 8, 1, step=1, label="which sample")
        inputs = [edited, task, strength, noise]
        for control in inputs:
            control.change(preview, inputs, degraded, show_progress="hidden")
        button.click(restore, [*inputs, samples, quality, seed], [degraded, *cells, shows])
        number.change(turn, [shows, number], cells, show_progress="hidden")
        if examples:
            gr.Examples([[str(file)] for file in _enlarged(examples)], edited, label="examples")
    return page


def _enlarged(files: list[Path]) -> list[Path]:
    """Copy images at a size large enough to paint on."""
    folder, copies = Path(tempfile.mkdtemp(prefix="lavps-demo-")), []
    for number, file in enumerate(files):
        with Image.open(file) as image:
            scale = max(_CANVAS / max(image.size), 1.0)
            size = (round(image.width * scale), round(image.height * scale))
            copies.append(folder / f"{number}.png")
            image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(copies[-1])
    return copies


def _cells(shows: dict[str, Frame], names: list[str], number: int) -> list[Any]:
    cells: list[Any] = []
    for name in names:
        if (show := shows.get(name)) is None:
            cells += [f"**{name}**", None, None, None]
        else:
            cells += [show.clock(), show.sample(number), show.mean, show.uncertainty]
    return cells
