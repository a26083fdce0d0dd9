"""The screenshots of the demonstration: a real browser, from the upload to the download.

python docs/demo_screenshots.py            # wants `pip install -e ".[demo]" playwright` and a Chromium

The face is a sample of the prior: nobody was photographed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parent
PORT = 7871
SIZES = {1440: 1000, 390: 844}
OPTIONS = ["--prior", "zoo/synthfaces64", "--inference-model", "zoo/synthfaces64-4steps"]


def small_face(file: Path) -> None:
    """A sample of the prior, reduced to 16 x 16 pixels, with noise 0.05."""
    sheet = Image.open(ROOT / "zoo" / "synthfaces64" / "samples.png").convert("RGB")
    levels = np.asarray(sheet.crop((64, 0, 128, 64)), dtype=float).reshape(16, 4, 16, 4, 3).mean((1, 3))
    levels += np.random.default_rng(0).normal(0, 0.05 * 127.5, levels.shape)
    Image.fromarray(np.clip(levels.round(), 0, 255).astype(np.uint8)).save(file)


def whole_face(file: Path) -> None:
    """A sample of the prior."""
    sheet = Image.open(ROOT / "zoo" / "synthfaces64" / "samples.png").convert("RGB")
    sheet.crop((64, 0, 128, 64)).save(file)


def wait_for(address: str) -> None:
    """Until the page answers."""
    for _ in range(600):
        with suppress(OSError):
            urllib.request.urlopen(address, timeout=5)
            return
        time.sleep(0.5)
    raise SystemExit(f"nothing answers at {address}")


def shot(page: Any, name: str) -> None:
    """Take a screenshot of the whole page, in few colours: a small file."""
    page.screenshot(path=str(HERE / name), full_page=True)
    Image.open(HERE / name).convert("RGB").quantize(128).save(HERE / name, optimize=True)


def restored(page: Any) -> Any:
    """Press the button of the tab, and return the one of the download once it is there."""
    page.get_by_role("button", name="Restore").locator("visible=true").click()
    button = page.get_by_text("Download everything").locator("visible=true")
    button.wait_for()
    page.wait_for_timeout(2000)
    return button


def visit(page: Any, width: int, folder: Path) -> None:
    """Upload, restore, download; stop a run; degrade and restore an example."""
    page.goto(f"http://127.0.0.1:{PORT}")
    page.locator("input[type=file]").first.set_input_files(folder / "face.png")
    page.get_by_label("It is too small").check()
    page.get_by_label("4", exact=True).check()
    page.wait_for_timeout(2000)
    button = restored(page)
    shot(page, f"demo-{width}.png")
    with page.expect_download() as download:
        button.click()
    download.value.save_as(folder / "all.zip")
    names = zipfile.ZipFile(folder / "all.zip").namelist()
    assert {f"face-{n}.png" for n in range(1, 5)} <= set(names), names
    page.get_by_role("button", name="Restore").first.click()
    page.get_by_text("left").first.wait_for()
    page.get_by_role("button", name="Stop").first.click()
    page.get_by_text("Stopped.").first.wait_for()
    page.get_by_role("tab", name="Show me").click()
    page.get_by_label("Cut a hole").check()
    page.wait_for_timeout(3000)
    restored(page)
    shot(page, f"demo-example-{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def paint(page: Any, width: int, folder: Path) -> None:
    """Upload a face, paint over an eye, and restore."""
    page.goto(f"http://127.0.0.1:{PORT}")
    page.locator("input[type=file]").first.set_input_files(folder / "whole.png")
    page.get_by_label("Parts are missing").check()
    canvas = page.locator("canvas").locator("visible=true").first
    canvas.wait_for()
    page.wait_for_timeout(3000)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for height in (0.40, 0.45, 0.50):
        page.mouse.move(box["x"] + 0.42 * box["width"], box["y"] + height * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.58 * box["width"], box["y"] + height * box["height"], steps=8)
        page.mouse.up()
    page.wait_for_timeout(2000)
    restored(page)
    assert page.get_by_text("of the image is known").count() == 0  # the brush is not too wide
    shot(page, f"demo-paint-{width}.png")


def main() -> None:
    """All screenshots."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        folder = Path(name)
        small_face(folder / "face.png")
        whole_face(folder / "whole.png")
        command = [sys.executable, "-m", "lavps.cli", "demo", *OPTIONS, "--port", str(PORT)]
        server = subprocess.Popen(command, cwd=ROOT)
        try:
            wait_for(f"http://127.0.0.1:{PORT}")
            browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            for width, height in SIZES.items():
                page = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True)
                page.set_default_timeout(300_000)
                visit(page, width, folder)
                paint(page, width, folder)
                page.close()
            browser.close()
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
