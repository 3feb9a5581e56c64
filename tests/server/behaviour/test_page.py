"""The engine view in a real browser, against a real server with the demo model."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import chromium, violations, watched_page
from recorded_life import Life
from serving import ServerProcess

thorough = pytest.mark.thorough  # `make page` runs these
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\x1b[2J\u202e&lt;b&gt;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, live_server: ServerProcess) -> Iterator[Any]:
    with watched_page(browser, accept_downloads=True) as page:
        page.goto(f"{live_server.url}/engine")
        page.wait_for_function("() => document.getElementById('about').textContent.includes('policy')")
        yield page


def send(page: Any, *, prompt: str = "One day, a little girl", **fields: int) -> None:
    """Greedy, after which the demo model goes on for 900 tokens; a sample may end early."""
    page.fill("#prompt", prompt)
    for name, value in {"temperature": 0, **fields}.items():
        page.fill(f"[name={name}]", str(value))
    page.click("#send")


def wait_for_text(page: Any, selector: str, text: str) -> str:
    found = "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)"
    try:
        page.wait_for_function(found, arg=[selector, text])
    except Exception:
        print(f"{selector} says:", page.locator(selector).all_text_contents())
        raise
    return str(page.locator(selector).first.text_content())


def is_drawn(page: Any, selector: str) -> bool:
    """Return True if a canvas shows more than one colour."""
    script = """(canvas) => new Set(new Uint32Array(
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 1"""
    return bool(page.locator(selector).evaluate(script))


def words_of_steps(page: Any, count: int) -> Iterator[str]:
    """Yield the texts of the steps that the arrow key visits, one after the other."""
    for _ in range(count):
        before = page.get_attribute("#strip-canvas", "aria-valuenow")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => new Promise(requestAnimationFrame)")
        yield page.text_content("#step-words")
        if page.get_attribute("#strip-canvas", "aria-valuenow") == before:
            return


def test_an_answer_streams_survives_a_reload_and_is_explained(page: Any) -> None:
    send(page, max_tokens=120)
    page.wait_for_function("() => document.querySelector('.stream pre')?.textContent.length > 20")
    assert re.search(r"#ids=[\w-]{32}$", page.url)
    name = page.text_content(".stream h3")
    page.reload()
    wait_for_text(page, ".stream .words", "length: 120 tokens")
    assert page.text_content(".stream h3") == name
    assert len(page.text_content(".stream pre")) > 200
    page.click(".stream >> text=Explain")
    told = wait_for_text(page, "#dialog-body", "ended")
    assert "its prompt was computed" in told
    assert "chunk" in told
    page.keyboard.press("Escape")
    page.click("#clear")
    assert "#" not in page.url


@thorough
def test_several_streams_side_by_side_and_one_is_cancelled(page: Any) -> None:
    send(page, max_tokens=400, copies=3)
    page.wait_for_function("() => document.querySelectorAll('.stream').length === 3")
    page.locator(".stream >> text=Cancel").first.click()
    wait_for_text(page, ".stream .words", "cancelled")
    page.wait_for_function("() => document.querySelectorAll('.stream pre')[2].textContent.length > 20")
    for button in page.locator(".stream >> text=Cancel").all():
        if button.is_enabled():
            button.dispatch_event("click")
    page.wait_for_function(
        "() => document.getElementById('lanes-canvas').getAttribute('aria-label').includes(', 0 of them')"
    )
    page.click("#clear")
    assert page.locator(".stream").count() == 0


@thorough
def test_strip_lanes_blocks_and_figures_show_what_runs(page: Any) -> None:
    send(page, max_tokens=40, copies=2)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.stream .words')].every((one) => one.textContent.includes('length'))"
    )
    page.wait_for_function(
        "() => document.getElementById('lanes-canvas').getAttribute('aria-label').includes(', 0 of them')"
    )
    for canvas in ("#strip-canvas", "#lanes-canvas", "#blocks-canvas", "#chart-gap", "#chart-rate"):
        assert is_drawn(page, canvas), canvas
    page.focus("#strip-canvas")
    page.keyboard.press("End")
    wait_for_text(page, "#step-words", "Step ")
    before = page.text_content("#step-words")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("(before) => document.getElementById('step-words').textContent !== before", arg=before)
    words = page.text_content("#step-words")
    assert re.match(r"Step \d+: \d of 512 tokens in [\d.,]+ ms: 0 of prompts, \d of decodes\.", words), words
    assert page.get_attribute("#strip-canvas", "aria-valuetext") == words
    assert page.get_attribute("#pause", "aria-pressed") == "true"
    page.keyboard.press("Home")
    assert "A chunk of request" in "".join(words_of_steps(page, 100))
    page.click("#pause")
    assert "128 blocks" in page.text_content("#blocks-words")
    wait_for_text(page, "#figures-list", "gap, 99 %")
    page.click("#lanes-canvas", position={"x": 1100, "y": 4})
    assert "ended" in wait_for_text(page, "#dialog-body", "arrived")


@thorough
def test_what_a_program_would_send(page: Any) -> None:
    page.fill("#prompt", "it's \u202e<b>")
    for kind, text in (("curl", "curl -N http://127.0.0.1"), ("python", "Client("), ("openai", "openai.OpenAI(")):
        page.click(f"[data-copy={kind}]")
        shown = page.text_content("#dialog-body")
        assert text in shown
        assert "\\u202e<b>" in shown
        page.click("#dialog-close")


@thorough
def test_the_laboratory(page: Any) -> None:
    page.fill("#clients", "2")
    page.click("#long-prompt")
    assert "A prompt of 504 tokens" in wait_for_text(page, "#laboratory-words", "first token after")
    page.click("#compare")
    table = wait_for_text(page, "#comparison", "prefill_first")
    assert all(word in table for word in ("splitfuse", "decode_first", "static", "longest gap", "stood still"))
    assert all(is_drawn(page, f"#comparison canvas >> nth={index}") for index in range(4))
    page.fill("#clients", "0")
    wait_for_text(page, "#laboratory-words", "stopped")


@thorough
def test_the_show_says_which_policy_stalls_streams_least(page: Any) -> None:
    page.click("#show-me")
    page.wait_for_selector(".verdict", timeout=90_000)
    words = page.text_content(".verdict")
    assert re.fullmatch(r"Streams stood still ([\d.]+ s with \w+, ){3}and only ([\d.]+) s with splitfuse\.", words), (
        words
    )
    assert page.get_attribute(".verdict", "data-best") == "splitfuse"
    headings = page.locator("#show-result th").all_text_contents()
    assert headings[:3] == ["simulated policy", "longest gap", "streams stood still"]
    assert page.locator("#show-result .best td >> nth=0").text_content() == "splitfuse"
    axes = page.locator("#show-result canvas").evaluate_all("(all) => all.map((canvas) => canvas.dataset.axes)")
    assert len(axes) == 4
    assert len(set(axes)) == 1
    assert all(is_drawn(page, f"#show-result canvas >> nth={index}") for index in range(4))
    assert page.is_enabled("#show-me")


@thorough
def test_the_colours_of_legends_differ_for_everyone(page: Any) -> None:
    """What was preempted is hatched, and no colour of one legend stands for two things."""
    page.wait_for_selector("#lanes-legend .swatch")
    for legend in ("#strip-legend", "#lanes-legend", "#blocks-legend"):
        colours = page.locator(f"{legend} .swatch").evaluate_all(
            "(all) => all.map((swatch) => swatch.className + swatch.style.background)"
        )
        assert len(set(colours)) == len(colours), legend
    assert "preempted" in page.text_content("#strip-legend span:has(.hatched)")
    assert "preempted" in page.text_content("#lanes-legend span:has(.hatched)")


@thorough
def test_a_recording_is_opened_and_the_live_view_comes_back(page: Any, tmp_path: Path) -> None:
    recording = tmp_path / "life.jsonl"
    life = Life(3, busy_steps=40)
    recording.write_text(life.run())
    page.set_input_files("#open", str(recording))
    assert f"life.jsonl: {life.num_steps} steps" in wait_for_text(page, "#files-words", "steps")
    page.fill("#explain-number", "0")
    page.click("#explain-button")
    assert "prompt tokens" in page.text_content("#dialog-body")
    page.click("#dialog-close")
    page.focus("#strip-canvas")
    page.keyboard.press("Home")
    wait_for_text(page, "#step-words", "Step ")
    page.click("#live")
    assert not page.is_visible("#live")
    log = tmp_path / "steps.log"
    log.write_text(
        "[Step=0] prefill_tokens=480 decode_tokens=32 running=3 waiting=1 blocks=9/64 ms=12.5 time=1.5 gap_ms=20.0\n"
    )
    page.set_input_files("#open", str(log))
    wait_for_text(page, "#files-words", "steps.log: 1 steps")
    page.set_input_files("#open", {"name": "x.txt", "mimeType": "text/plain", "buffer": b"nothing"})
    wait_for_text(page, "#files-words", "holds no steps")


@thorough
def test_a_saved_view_needs_no_server(page: Any, browser: Any, tmp_path: Path) -> None:
    send(page, max_tokens=20)
    wait_for_text(page, ".stream .words", "length")
    with page.expect_download() as download:
        page.click("#save-page")
    download.value.save_as(tmp_path / "saved.html")
    with watched_page(browser, offline=True) as saved:
        saved.goto((tmp_path / "saved.html").as_uri())
        assert "A saved view of splitfuse-demo-5m" in saved.text_content("#now")
        assert is_drawn(saved, "#strip-canvas")
        assert is_drawn(saved, "#lanes-canvas")
        wait_for_text(saved, "#figures-list", "gap, median")
        saved.focus("#strip-canvas")
        saved.keyboard.press("End")
        wait_for_text(saved, "#step-words", "Step ")
        assert not saved.is_visible("#prompt-form")
    with page.expect_download() as download:
        page.click("#save-trace")
    download.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


@pytest.fixture
def keyed_server() -> Iterator[ServerProcess]:
    arguments = ("--dtype", "float32", "--num-kv-blocks", "128", "--max-model-len", "512")
    with ServerProcess(*arguments, "--api-key", "alice", "--api-key", "bob", "--admin-key", "admin") as server:
        yield server


@thorough
@pytest.mark.parametrize(("key", "num_seen"), [("alice", 1), ("admin", 2)])
def test_with_keys_others_are_shapes(browser: Any, keyed_server: ServerProcess, key: str, num_seen: int) -> None:
    """An admin key sees requests of other keys as shapes, and a key sees none of them."""
    with watched_page(browser, expected=("401",)) as page:
        page.goto(f"{keyed_server.url}/engine")
        page.wait_for_selector("#key-form", state="visible")
        page.fill("#key", key)
        page.click("#key-form button")
        wait_for_text(page, "#about", "policy")
        assert page.evaluate("localStorage.length") == 0
        fields = {"prompt": "the secret of bob", "max_tokens": 20}
        bob = {"Authorization": "Bearer bob"}
        foreign = httpx.post(f"{keyed_server.url}/generate", json=fields, headers=bob).json()["seq_id"]
        httpx.get(f"{keyed_server.url}/result/{foreign}?wait=60", headers=bob)
        send(page, max_tokens=10)
        wait_for_text(page, ".stream .words", "length")
        page.wait_for_function(
            "(seen) => document.getElementById('lanes-canvas').getAttribute('aria-label').startsWith(seen)",
            arg=f"{num_seen} requests in view, 0",
        )
        page.fill("#explain-number", "0")
        page.click("#explain-button")
        assert ("came with" in page.text_content("#dialog-body")) is (num_seen == 2)
        assert foreign not in page.content()


def test_hostile_text_stays_text(browser: Any, live_server: ServerProcess) -> None:
    """Hostile text comes from the model, in its name and in a file; one line has a million characters."""
    long = HOSTILE + "x" * 1_000_000
    tokens = "".join(
        f"id: {i}\nevent: token\ndata: {json.dumps({'index': 0, 'text': text, 'token_ids': [1]})}\n\n"
        for i, text in enumerate((HOSTILE, long))
    )
    hello = {"model": HOSTILE, "batching_policy": HOSTILE, "budget": 1, "num_blocks": 1}
    with watched_page(browser, expected=("Failed to load", "ERR_")) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"the page asked {dialog.message}"))
        page.route("**/stats/stream", lambda route: route.fulfill(body=f"event: hello\ndata: {json.dumps(hello)}\n\n"))
        page.route(
            "**/result/*/stream*", lambda route: route.fulfill(body=tokens if "after" not in route.request.url else "")
        )
        page.goto(f"{live_server.url}/engine")
        send(page, prompt=HOSTILE, max_tokens=1)
        page.wait_for_function("() => document.querySelector('.stream pre')?.textContent.length > 200000")
        page.wait_for_function("(text) => document.getElementById('now').textContent.includes(text)", arg=HOSTILE)
        assert page.evaluate("document.querySelectorAll('#streams img, #streams script, header p img').length") == 0
        assert page.evaluate("document.querySelector('.stream pre').children.length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        name = f"{HOSTILE}.jsonl".replace("/", "")
        page.set_input_files("#open", {"name": name, "mimeType": "text/plain", "buffer": HOSTILE.encode() * 10})
        wait_for_text(page, "#files-words", "holds no steps")
        assert page.evaluate("document.querySelectorAll('#files-words *').length") == 0


@thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible(browser: Any, live_server: ServerProcess, scheme: str, width: int) -> None:
    with watched_page(browser, color_scheme=scheme, viewport={"width": width, "height": 844}) as page:
        page.goto(f"{live_server.url}/engine")
        send(page, max_tokens=10)
        wait_for_text(page, ".stream .words", "length")
        assert violations(page) == []
        page.click(".stream >> text=Explain")
        wait_for_text(page, "#dialog-body", "ended")
        assert violations(page) == []
        page.click("#dialog-close")
        page.click("#compare")
        wait_for_text(page, "#comparison", "prefill_first")
        assert violations(page) == []


@thorough
@pytest.mark.parametrize("width", [400, 320])
def test_it_fits_a_narrow_window(browser: Any, live_server: ServerProcess, width: int) -> None:
    with watched_page(browser, viewport={"width": width, "height": 800}) as page:
        page.goto(f"{live_server.url}/engine")
        send(page, max_tokens=10)
        wait_for_text(page, ".stream .words", "length")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body")
