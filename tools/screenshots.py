"""Take the gallery's small pictures of views: `python tools/screenshots.py`.

It opens what the examples of `docs/pictures/views` make in Chromium, by selenium and
chromedriver, and writes a picture beside each example.
"""

from __future__ import annotations

import io
import runpy
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

EXAMPLES = Path(__file__).parents[1] / "docs" / "pictures" / "views"
SIZE = 400, 280  # pixels, as the gallery has them
PAGE = {"head_view": (560, 392), "model_view": (560, 392), "neuron_view": (700, 490)}
COLORS = 64  # as many as flat areas and grey letters need


def browser() -> webdriver.Chrome:
    """Return a browser without a window."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def main() -> None:
    """Write the pictures."""
    chrome = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for example in sorted(EXAMPLES.glob("*.py")):
                page = Path(folder, "view.html")
                runpy.run_path(str(example))["view"].save(page)
                width, height = PAGE[example.stem]
                metrics = {"deviceScaleFactor": 2, "mobile": False}
                metrics |= {"width": width, "height": height}
                chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
                chrome.get(page.as_uri())
                image = Image.open(io.BytesIO(chrome.get_screenshot_as_png()))
                small = image.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
                small.quantize(COLORS).save(example.with_suffix(".png"), optimize=True)
    finally:
        chrome.quit()


if __name__ == "__main__":
    main()
