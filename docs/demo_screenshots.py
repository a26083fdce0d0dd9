"""The screenshots of the demonstration: a real browser, faces that the prior drew itself.

python docs/demo_screenshots.py            # wants `pip install -e ".[demo]" playwright` and a Chromium

Best on a machine that does nothing else: the clocks are in the picture.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parent
PORT = 7871
FACES = ((2, 5), (0, 0), (3, 1), (5, 2), (6, 6))  # places on the sheet of samples


def cut(folder: Path) -> None:
    """Faces from the sheet of samples beside the prior."""
    sheet = Image.open(ROOT / "zoo" / "faces64" / "samples.png")
    for number, (column, row) in enumerate(FACES):
        box = (64 * column, 64 * row, 64 * column + 64, 64 * row + 64)
        sheet.crop(box).save(folder / f"{number}.png")


def wait_for(address: str) -> None:
    """Until the page answers."""
    for _ in range(240):
        with suppress(OSError):
            urllib.request.urlopen(address, timeout=5)
            return
        time.sleep(0.5)
    raise SystemExit(f"nothing answers at {address}")


def restored(page: Any, file: str) -> None:
    """Press the button, wait for both methods to end, and take the picture."""
    page.get_by_role("button", name="Restore").click()
    page.wait_for_function("(document.body.innerText.match(/misfit/g) || []).length >= 2", timeout=600_000)
    page.wait_for_timeout(2000)
    page.screenshot(path=str(HERE / file), full_page=True)


@contextmanager
def opened(play: Any, folder: Path, model: str, example: int) -> Iterator[Any]:
    """The demonstration with an inference model, an example chosen, in a browser."""
    command = [
        sys.executable,
        "-m",
        "lavps.cli",
        "demo",
        "--prior",
        "zoo/faces64",
        "--inference-model",
        model,
    ]
    server = subprocess.Popen([*command, "--examples", str(folder), "--port", str(PORT)], cwd=ROOT)
    try:
        wait_for(f"http://127.0.0.1:{PORT}")
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(f"http://127.0.0.1:{PORT}")
        page.locator(".gallery-item").nth(example).click()
        page.wait_for_timeout(3000)
        yield page
        browser.close()
    finally:
        server.terminate()
        server.wait(30)


def main() -> None:
    """Both screenshots."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        folder = Path(name)
        cut(folder)
        with opened(play, folder, "zoo/faces64-sr4", 0) as page:
            restored(page, "demo.png")
        with opened(play, folder, "zoo/faces64-centre-box", 0) as page:
            page.get_by_label("inpainting").check()
            page.wait_for_timeout(2000)
            restored(page, "demo-mask.png")


if __name__ == "__main__":
    main()
