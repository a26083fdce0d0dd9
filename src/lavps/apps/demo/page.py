"""The page of the demonstration, made with Gradio."""

from __future__ import annotations

__all__ = ["build_page", "launch"]

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ...extras import require
from ...restoration.presets import Quality
from .damage import Damage
from .demonstration import Demonstration, Pixels
from .view import ResultView, Runs

_KINDS = {
    "It is noisy or grainy": "noise",
    "It is too small": "small",
    "Parts are missing or scratched": "missing",
    "It is out of focus": "blur",
    "It has the blocks of strong JPEG compression": "jpeg",
}
_DAMAGES = {
    "Add noise": "noise",
    "Make it small": "small",
    "Cut a hole": "missing",
    "Blur it": "blur",
    "Compress it": "jpeg",
}
_NOISES = {
    "Estimate it (recommended)": None,
    "A little (0.02)": 0.02,
    "Visible (0.05)": 0.05,
    "Strong (0.1)": 0.1,
    "Very strong (0.25)": 0.25,
}
_QUALITIES = {"Fast": "fast", "Balanced (slower)": "balanced", "Best (slowest)": "best"}
_CSS = """
.gradio-container {max-width: 1200px !important; margin: auto !important}
.lavps-bar {height: 6px; border-radius: 3px; background: var(--border-color-primary); margin: 8px 0}
.lavps-bar div {height: 100%; border-radius: 3px; background: var(--primary-500); transition: width .3s}
.lavps-note {padding: 8px 12px; border-left: 4px solid #d9a400; background: #d9a4001a; margin: 8px 0}
.lavps-own img {width: 100%; height: 100%; object-fit: contain}
.lavps-list .wrap {flex-direction: column; align-items: stretch}
.lavps-examples .grid-container {grid-template-columns: repeat(4, minmax(0, 1fr)) !important}
.lavps-idle {color: var(--body-text-color-subdued); padding: 24px 0}
"""


def _painted(edited: Any) -> npt.NDArray[np.bool_] | None:
    """Return the mask of the strokes in the editor."""
    layers = [] if not edited else [layer for layer in edited.get("layers", []) if layer is not None]
    strokes = [np.asarray(layer)[..., 3] > 0 for layer in layers]
    return np.any(strokes, axis=0) if strokes else None


def _options(gr: Any, has_quality: bool) -> list[Any]:
    """Build the options that few need; return samples, quality and seed."""
    with gr.Accordion("More options", open=False):
        samples = gr.Slider(1, 8, 4, step=1, label="Number of possible images")
        quality = gr.Radio(list(_QUALITIES.items()), value="fast", label="Quality", visible=has_quality)
        seed = gr.Number(0, label="Seed: another number gives other samples", precision=0)
    return [samples, quality, seed]


def _connected(view: ResultView, runs: Runs, gr: Any, restore: Any, inputs: list[Any]) -> None:
    """Connect the buttons of a tab."""

    def stop(request: gr.Request) -> None:
        runs.stop(view, request.session_hash)

    stop.__annotations__["request"] = gr.Request
    restore.__annotations__["request"] = gr.Request
    hidden = {"show_progress": "hidden", "api_visibility": "private"}
    view.start.click(restore, inputs, view.outputs, **hidden)
    view.stop.click(stop, None, None, queue=False, **hidden)
    view.which.input(view.chosen, [view.outcome, view.which], view.slider, **hidden)


def _own_tab(gr: Any, runs: Runs) -> None:
    """Build the tab of a degraded image that is uploaded."""
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            file = gr.Image(
                label="Your image", type="filepath", image_mode=None, sources=["upload", "clipboard"],
                height=280, buttons=[], elem_classes="lavps-own",
            )  # fmt: skip
            kind = gr.Radio(
                list(_KINDS.items()), value="noise", label="What happened to it?", elem_classes="lavps-list"
            )
            factor = gr.Radio([2, 3, 4, 8], value=2, label="How many times larger?", visible=False)
            width = gr.Slider(0.5, 6, 1.5, step=0.1, label="Width of the blur in pixels", visible=False)
            editor = gr.ImageEditor(
                label="Paint over the missing parts", type="numpy", sources=(), transforms=(), layers=False,
                brush=_brush(gr, 10), height=360, visible=False, buttons=[],
            )  # fmt: skip
            noise = gr.Dropdown(
                [(name, str(std)) for name, std in _NOISES.items()], value="None", label="How noisy is it?"
            )
            options = _options(gr, runs.demonstration.has_quality)
            buttons = gr.Row()
        with gr.Column(scale=3, min_width=320):
            view = ResultView(gr)
        with buttons:
            view.start.render()
            view.stop.render()

    def restore(
        path: str | None, kind: str, factor: int, width: float, edited: Any, noise: str, samples: float,
        quality: Quality, seed: float, request: Any,
    ) -> Iterator[dict[Any, Any]]:  # fmt: skip
        def read() -> tuple[Path, Damage, None]:
            if path is None:
                raise ValueError("Choose an image first: drop a file on the left.")
            amount = {"small": factor, "blur": width}.get(kind, 0)
            std = None if noise == "None" else float(noise)
            return Path(path), Damage(kind, amount, std, _painted(edited)), None

        yield from runs.run(view, request.session_hash, read, samples, quality, seed)

    def adapt(kind: str, path: str | None) -> list[Any]:
        show = [gr.update(visible=kind == name) for name in ("small", "blur")]
        if kind != "missing" or path is None:
            return [*show, gr.update(visible=False, value=None)]
        canvas = _canvas(path)
        return [
            *show,
            gr.update(visible=True, value=canvas, brush=_brush(gr, max(1, min(canvas.shape[:2]) // 12))),
        ]

    for control in (kind, file):
        control.change(adapt, [kind, file], [factor, width, editor], show_progress="hidden")
    _connected(view, runs, gr, restore, [file, kind, factor, width, editor, noise, *options])


def _brush(gr: Any, size: int) -> Any:
    """Return a brush of a size in pixels of the image."""
    return gr.Brush(default_size=size, colors=["#cc3333"], color_mode="fixed")


def _canvas(path: str) -> Any:
    """Return an image, upright, in 8 bits and colour, as the background of the editor."""
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def _example_tab(gr: Any, runs: Runs, examples: list[Pixels]) -> Any:
    """Build the tab of examples; return what shows the first one when the page is loaded."""
    demonstration = runs.demonstration
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            gallery = gr.Gallery(
                [Image.fromarray(image).resize((128, 128)) for image in examples],
                label="Choose an example", columns=4, height=260, allow_preview=False, selected_index=0,
                buttons=[], interactive=False, object_fit="cover", elem_classes="lavps-examples",
            )  # fmt: skip
            kind = gr.Radio(list(_DAMAGES.items()), value="small", label="What shall happen to it?")
            strength = gr.Slider(0, 1, 0.5, step=0.05, label="How badly?")
            options = _options(gr, runs.demonstration.has_quality)
            buttons = gr.Row()
        with gr.Column(scale=3, min_width=320):
            measured = gr.Image(
                label="The degraded image", interactive=False, buttons=[], height=280, elem_id="degraded"
            )
            view = ResultView(gr)
        with buttons:
            view.start.render()
            view.stop.render()
    number = gr.State(0)

    def degrade(number: int, kind: str, strength: float) -> tuple[Path, Damage]:
        damage = Damage.simulated(kind, strength, demonstration.shape)
        return demonstration.degraded(examples[number], damage), damage

    def show(number: int, kind: str, strength: float) -> Any:
        return demonstration.shown(*degrade(number, kind, strength))

    def select(event: Any, kind: str, strength: float) -> Any:
        return event.index, show(event.index, kind, strength)

    def restore(
        number: int, kind: str, strength: float, samples: float, quality: Quality, seed: float, request: Any
    ) -> Iterator[dict[Any, Any]]:
        def read() -> tuple[Path, Damage, Pixels]:
            return *degrade(number, kind, strength), demonstration.original(examples[number])

        yield from runs.run(view, request.session_hash, read, samples, quality, seed)

    select.__annotations__["event"] = gr.SelectData
    gallery.select(select, [kind, strength], [number, measured], show_progress="hidden")
    for control in (kind, strength):
        control.change(show, [number, kind, strength], measured, show_progress="hidden")
    _connected(view, runs, gr, restore, [number, kind, strength, *options])
    return show, [number, kind, strength], measured


def build_page(demonstration: Demonstration, examples: list[Path]) -> Any:
    """Build the page, ready to be launched."""
    gr = require("gradio", "demo")
    images = [np.asarray(Image.open(file).convert("RGB")) for file in examples] or demonstration.examples()
    runs, side = Runs(demonstration), " x ".join(map(str, demonstration.shape[1:]))
    with gr.Blocks(title="lavps", analytics_enabled=False, delete_cache=(3600, 24 * 3600)) as page:
        gr.Markdown(
            "# Restore an image\nYou get several images that could be behind the degraded one. Each is "
            f"plausible, none is the truth. The prior is **{Path(demonstration.prior).name}** "
            f"({side} pixels): images of another kind are restored badly."
        )
        with gr.Tabs():
            with gr.Tab("I have a degraded image"):
                _own_tab(gr, runs)
            if images:
                with gr.Tab("Show me"):
                    show, inputs, output = _example_tab(gr, runs, images)
                page.load(show, inputs, output, show_progress="hidden")
    return page


def launch(page: Any, port: int) -> None:
    """Serve the page on 127.0.0.1 until interrupted."""
    gr = require("gradio", "demo")
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}
    print(f"the demo is at http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    page.launch(
        server_name="127.0.0.1", server_port=port, share=False, quiet=True, footer_links=[],
        theme=gr.themes.Default(**fonts), css=_CSS,
    )  # fmt: skip
