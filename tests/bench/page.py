"""Pictures of the chat and of the engine view: `python tests/bench/page.py FOLDER [--model …]` starts a server."""

import argparse
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from browser import chromium, watched_page
from serving import ServerProcess

WIDE = {"width": 1200, "height": 860}
PICTURES = {f"wide-{scheme}": {"viewport": WIDE, "color_scheme": scheme} for scheme in ("light", "dark")}
QUESTION = "Explain in three short points why the sky is blue."
FRAME_MS = 500  # between two pictures of the animation
MAX_FRAMES = 60


def pictures(args: argparse.Namespace) -> None:
    """Take a picture of the chat in each scheme, and an animation of the show."""
    args.folder.mkdir(parents=True, exist_ok=True)
    with ServerProcess(*args.model, "--num-kv-blocks", "1024") as server, chromium() as browser:
        for name, options in PICTURES.items():
            with watched_page(browser, **options) as page:
                ask(page, server.url)
                page.screenshot(path=args.folder / f"chat-{name}.png")
        with watched_page(browser, **PICTURES["wide-light"]) as page:
            animate(show(page, server.url), args.folder / "show.webp")
    quantized = [str(path) for path in args.folder.glob("*.png")]
    subprocess.run([sys.executable, "-c", _QUANTIZE, *quantized], check=False)


def ask(page: Any, url: str) -> None:
    """Ask a question in the chat, and wait for the end of the answer."""
    page.goto(url)
    page.wait_for_function("() => document.getElementById('model').textContent")
    page.fill("#prompt", QUESTION)
    page.keyboard.press("Enter")
    try:
        page.wait_for_selector(".assistant:not(.running) .stats", timeout=20_000)
    except Exception:  # a small model may go on for long
        page.keyboard.press("Escape")
        page.wait_for_selector(".assistant:not(.running) .stats")
    page.wait_for_timeout(300)


def show(page: Any, url: str) -> list[bytes]:
    """Play the show to its sentence, and return pictures of its course."""
    page.goto(f"{url}/engine")
    page.wait_for_function("() => document.getElementById('about').textContent.includes('policy')")
    page.click("#show-me")
    frames: list[bytes] = []
    while "3 of 3" not in page.inner_text("#show-words") and len(frames) < MAX_FRAMES:
        frames.append(page.screenshot())
        page.wait_for_timeout(FRAME_MS)
    page.wait_for_function("() => !document.getElementById('show-me').disabled")
    page.wait_for_timeout(400)
    return [*frames, page.screenshot()]


def animate(frames: list[bytes], path: Path) -> None:
    """Write an animation that rests on its last picture for 6 s."""
    from PIL import Image

    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    images = [image.resize((900, 900 * image.height // image.width), Image.Resampling.LANCZOS) for image in images]
    times = [FRAME_MS] * (len(images) - 1) + [6000]
    images[0].save(path, save_all=True, append_images=images[1:], duration=times, loop=0, quality=60, method=4)


# A quarter of the size, if Pillow is installed.
_QUANTIZE = """
import sys
from PIL import Image
for path in sys.argv[1:]:
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", nargs="*", default=["demo"])
    pictures(parser.parse_args())


if __name__ == "__main__":
    main()
