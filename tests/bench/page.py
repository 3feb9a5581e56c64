"""Page under load, by Chromium's own figures, and the page's pictures.

`python tests/bench/page.py frames`: frames per second with 256 requests in 2,000 steps, while 200 come each second and
the view scrolls; then, with --minutes, the page's memory after garbage collection, minute by minute. Steps are made up,
so that the engine does not take the browser's processor. `python tests/bench/page.py pictures FOLDER` starts a server.
"""

import argparse
import asyncio
import io
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from browser import chromium, watched_page
from serving import ServerProcess

NUM_REQUESTS, NUM_STEPS, STEPS_PER_S = 256, 2000, 200
HELLO = {"model": "made up", "batching_policy": "splitfuse", "budget": 512, "max_num_seqs": NUM_REQUESTS}
WIDE, NARROW = {"width": 1200, "height": 860}, {"width": 390, "height": 844}
PICTURES = {
    f"{size}-{scheme}": {"viewport": viewport, "color_scheme": scheme}
    for size, viewport in (("wide", WIDE), ("narrow", NARROW))
    for scheme in ("light", "dark")
}
QUESTION = "Explain in three short points why the sky is blue."
FRAME_MS = 500  # between two pictures of the animation
MAX_FRAMES = 60


class Steps:
    """Made-up steps: requests come and end, and a request decodes 400 steps."""

    def __init__(self) -> None:
        self.step = 0
        self._next = 0
        self._running: dict[int, int] = {}  # request → steps left

    def batch(self, count: int) -> bytes:
        """Return that many steps, with the requests that come and end in them."""
        came, steps, ended = [], [], []
        for _ in range(count):
            now = self.step / STEPS_PER_S
            chunks = []
            while len(self._running) < NUM_REQUESTS and len(chunks) < 2:
                came.append({"number": self._next, "arrival": now, "prompt": 120, "max": 600})
                chunks.append([self._next, 0, 120])
                self._running[self._next] = 100 + self._next * 37 % 600
                self._next += 1
            decodes = [number for number in self._running if [number, 0, 120] not in chunks]
            steps.append({"step": self.step, "start": now, "end": now + 0.9 / STEPS_PER_S, "budget": 512,
                "chunks": chunks, "decodes": decodes, "running": len(self._running), "blocks": [100, 0]})  # fmt: skip
            for number in decodes:
                self._running[number] -= 1
                if not self._running[number]:
                    del self._running[number]
                    ended.append([number, "length", now + 0.9 / STEPS_PER_S])
            self.step += 1
        events = (("requests", came), ("steps", steps), ("ended", ended))
        return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events if data).encode()


def serve_made_up(port: int) -> None:
    """Serve the page's files and a stream of made-up steps in a thread."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    from splitfuse.server.extras.page.assets import asset

    async def stream() -> AsyncIterator[bytes]:
        steps = Steps()
        yield f"event: hello\ndata: {json.dumps(HELLO)}\n\n".encode()
        yield steps.batch(NUM_STEPS)
        while True:
            await asyncio.sleep(0.05)
            yield steps.batch(STEPS_PER_S // 20)

    async def file(request: Request) -> Response:
        return asset(request.path_params.get("name", "engine.html"))

    async def ready(request: Request) -> Response:
        return Response()

    async def steps(request: Request) -> Response:
        return StreamingResponse(stream(), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/engine", file),
            Route("/ready", ready),
            Route("/page/{name}", file),
            Route("/stats/stream", steps),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)


# Forth and back, so that every frame draws all again.
_SCROLL = """() => {
  const strip = document.getElementById("strip-canvas");
  let count = 0;
  const scroll = () => {
    strip.dispatchEvent(new WheelEvent("wheel", {deltaY: count++ % 400 < 200 ? -12 : 12, cancelable: true}));
    if (!document.documentElement.dataset.still) requestAnimationFrame(scroll);
  };
  scroll();
}"""


def frames(args: argparse.Namespace) -> None:
    """Print frames per second of a trace, and the memory after every minute."""
    serve_made_up(args.port)
    with chromium() as browser, watched_page(browser) as page:
        page.goto(f"http://127.0.0.1:{args.port}/engine")
        page.wait_for_function(
            "() => document.getElementById('lanes-canvas').getAttribute('aria-label').includes('256')"
        )
        page.evaluate(_SCROLL)
        session = page.context.new_cdp_session(page)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            browser.start_tracing(page=page, path=path, categories=["disabled-by-default-devtools.timeline.frame"])
            page.wait_for_timeout(1000 * args.seconds)
            browser.stop_tracing()
            events = json.loads(path.read_text())["traceEvents"]
        times = sorted(event["ts"] for event in events if event["name"] == "DrawFrame")
        gaps = sorted(b - a for a, b in itertools.pairwise(times))
        rate = (len(times) - 1) / (times[-1] - times[0]) * 1e6
        print(f"{rate:.1f} frames/s; between frames: median {gaps[len(gaps) // 2] / 1e3:.0f} ms, "
            f"P99 {gaps[int(0.99 * len(gaps))] / 1e3:.0f} ms", flush=True)  # fmt: skip
        page.evaluate("document.documentElement.dataset.still = 'yes'")
        page.click("#pause")
        for minute in range(args.minutes + 1):
            session.send("HeapProfiler.collectGarbage")
            used = session.send("Runtime.getHeapUsage")["usedSize"]
            print(f"after {minute} minutes {used / 2**20:.1f} MiB", flush=True)
            if minute < args.minutes:
                page.wait_for_timeout(60_000)


def pictures(args: argparse.Namespace) -> None:
    """Take a picture of the chat and of the show in each size and scheme, and an animation of the show."""
    args.folder.mkdir(parents=True, exist_ok=True)
    with ServerProcess(*args.model, "--num-kv-blocks", "1024") as server, chromium() as browser:
        for name, options in PICTURES.items():
            with watched_page(browser, **options) as page:
                ask(page, server.url)
                page.screenshot(path=args.folder / f"chat-{name}.png")
        for name, options in PICTURES.items():
            with watched_page(browser, **options) as page:
                course = show(page, server.url)
                page.screenshot(path=args.folder / f"{name}.png")
            if name == "wide-light":
                animate(course, args.folder / "show.webp")
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
    while not page.is_visible(".verdict") and len(frames) < MAX_FRAMES:
        frames.append(page.screenshot())
        page.wait_for_timeout(FRAME_MS)
    page.wait_for_selector(".verdict")
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("frames")
    one.add_argument("--seconds", type=int, default=15)
    one.add_argument("--minutes", type=int, default=0)
    one.add_argument("--port", type=int, default=8767)
    one.set_defaults(run=frames)
    other = commands.add_parser("pictures")
    other.add_argument("folder", type=Path)
    other.add_argument("--model", nargs="*", default=["demo"])
    other.set_defaults(run=pictures)
    args: Any = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
