"""Result on the page of the demonstration: its components, and the runs that fill them."""

from __future__ import annotations

__all__ = ["ResultView", "Runs"]

import html
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...restoration.presets import Quality
from .damage import Damage
from .demonstration import SHOWN, Demonstration, Outcome, Pixels, Status

_REMEDIES = {
    "small": "If the image already has its full size, choose another answer to the first question.",
    "missing": "Paint over the missing parts only.",
}
_BAD = ("does not", "unlike", "not finite", "out of range")  # beginnings of checks that warn
_NAMES = ("status", "preview", "slider", "which", "uncertainty", "checks", "archive")
_IDLE = '<div class="lavps-idle">The result appears here.</div>'


def _note(text: str) -> str:
    return f'<div class="lavps-note">{html.escape(text)}</div>'


def _warnings(status: Status, remedy: str) -> str:
    return "".join(_note(f"{text[:1].upper()}{text[1:]}. {remedy}") for text in status.warnings)


def _message(status: Status, remedy: str) -> str:
    """Return the state of a run as HTML: warnings, text and bar."""
    bar = f'<div class="lavps-bar"><div style="width: {100 * status.share:.1f}%"></div></div>'
    return f"{_warnings(status, remedy)}{html.escape(status.text)}{bar}"


def _assessed(checks: Sequence[tuple[str, str]]) -> str:
    """Return the checks as HTML; those that warn stand out."""
    lines = [
        _note(f"{name}: {text}") if text.startswith(_BAD) else f"<p><b>{name}</b>: {html.escape(text)}</p>"
        for name, text in checks
    ]
    return "".join(["<h3>Can it be trusted?</h3>", *lines])


class ResultView:
    """Result of a tab: its components, and their values.

    Args:
        gr: Gradio.
    """

    def __init__(self, gr: Any) -> None:
        self.gr = gr
        self.status = gr.HTML(_IDLE)
        self.preview = gr.Image(
            label="In progress", visible=False, buttons=[], interactive=False, height=SHOWN
        )
        self.slider = gr.ImageSlider(
            label="Before and after: drag the line", visible=False, interactive=False, max_height=SHOWN
        )
        self.which = gr.Radio([], label="Show", visible=False)
        self.uncertainty = gr.Image(
            label="Uncertainty: bright where the samples differ",
            visible=False, interactive=False, buttons=[], height=260,
        )  # fmt: skip
        self.checks = gr.HTML(visible=False)
        self.archive = gr.DownloadButton("Download everything (zip)", visible=False, variant="primary")
        self.outcome = gr.State(None)
        self.start = gr.Button("Restore", variant="primary", render=False)
        self.stop = gr.Button("Stop", interactive=False, render=False)

    @property
    def outputs(self) -> list[Any]:
        """Components that a run changes."""
        return [*(getattr(self, name) for name in _NAMES), self.outcome, self.start, self.stop]

    def running(self, status: Status, remedy: str = "") -> dict[Any, Any]:
        """Return the values during a run."""
        gr, hidden = self.gr, {getattr(self, name): self.gr.update(visible=False) for name in _NAMES}
        shown = status.preview is not None
        return hidden | {
            self.status: gr.update(value=_message(status, remedy), visible=True),
            self.preview: gr.update(value=status.preview, visible=shown),
            self.start: gr.update(interactive=False),
            self.stop: gr.update(interactive=True),
        }

    def ended(self, message: str) -> dict[Any, Any]:
        """Return the values after a run without an outcome."""
        return {self.status: self.gr.update(value=message, visible=True)} | self._buttons()

    def _buttons(self) -> dict[Any, Any]:
        return {self.start: self.gr.update(interactive=True), self.stop: self.gr.update(interactive=False)}

    def done(self, outcome: Outcome, original: Pixels | None, warnings: str) -> dict[Any, Any]:
        """Return the values after a run."""
        gr, names = self.gr, [f"Sample {n + 1}" for n in range(len(outcome.samples))]
        names += ["Average"] if len(names) > 1 else []
        names += [] if original is None else ["Original"]
        return {
            self.status: gr.update(value=warnings, visible=bool(warnings)),
            self.preview: gr.update(visible=False),
            self.slider: gr.update(value=(outcome.before, outcome.samples[0]), visible=True),
            self.which: gr.update(choices=names, value=names[0], visible=len(names) > 1),
            self.uncertainty: gr.update(value=outcome.uncertainty, visible=outcome.uncertainty is not None),
            self.checks: gr.update(value=_assessed(outcome.checks), visible=True),
            self.archive: gr.update(value=str(outcome.archive), visible=True),
            self.outcome: (outcome, original),
        } | self._buttons()

    def chosen(self, state: tuple[Outcome, Pixels | None] | None, name: str) -> Any:
        """Return the two images of the slider."""
        if state is None or not name:
            return self.gr.update()
        outcome, original = state
        named = {f"Sample {n + 1}": sample for n, sample in enumerate(outcome.samples)}
        return outcome.before, (named | {"Average": outcome.mean, "Original": original})[name]


class Runs:
    """Runs of all visitors, by session and tab, so that each can be stopped."""

    def __init__(self, demonstration: Demonstration) -> None:
        self.demonstration, self._events = demonstration, dict[str, threading.Event]()

    def run(
        self,
        view: ResultView,
        session: str | None,
        read: Callable[[], tuple[Path, Damage, Pixels | None]],
        samples: float,
        quality: Quality,
        seed: float,
    ) -> Iterator[dict[Any, Any]]:
        """Restore a file, and yield the values of the view."""
        event = self._events[f"{session} {id(view)}"] = threading.Event()
        yield view.running(Status("Reading the image"))
        message, remedy = "", ""
        try:
            file, damage, original = read()
            remedy = _REMEDIES.get(damage.kind, "")
            states = self.demonstration.restore(file, damage, int(samples), quality, int(seed), event)
            for state in states:
                if isinstance(state, Outcome):
                    yield view.done(state, original, message)
                    return
                message = _warnings(state, remedy)
                yield view.running(state, remedy)
            yield view.ended('<div class="lavps-idle">Stopped.</div>')
        except ValueError as error:
            yield view.ended(_note(str(error)))

    def stop(self, view: ResultView, session: str | None) -> None:
        """Stop the run of a tab."""
        if (event := self._events.get(f"{session} {id(view)}")) is not None:
            event.set()
