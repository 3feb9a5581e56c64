"""The engine view in a real browser, against a real server with the demo model."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from browser import chromium, violations, watched_page
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


def send(url: str, *, key: str = "", **fields: Any) -> str:
    """Greedy, after which the demo model goes on for 900 tokens; returns the id of the ended answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": "One day, a little girl", "temperature": 0, **fields}
    seq_id = str(httpx.post(f"{url}/generate", json=body, headers=headers).json()["seq_id"])
    assert httpx.get(f"{url}/result/{seq_id}?wait=60", headers=headers, timeout=70).json()["status"] == "completed"
    return seq_id


def wait_for_lanes(page: Any) -> None:
    """Wait until the view has seen the end of every request."""
    label = "document.getElementById('lanes-canvas').getAttribute('aria-label')"
    page.wait_for_function(f"() => /^[1-9]\\d* requests in view, 0 of them/.test({label})")


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


@thorough
def test_strip_lanes_blocks_and_figures_show_what_runs(page: Any, live_server: ServerProcess) -> None:
    send(live_server.url, max_tokens=40, n=2, temperature=1)
    wait_for_lanes(page)
    for canvas in ("#strip-canvas", "#lanes-canvas", "#blocks-canvas"):
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
def test_docs_have_groups_and_send_requests(browser: Any, live_server: ServerProcess) -> None:
    with watched_page(browser, viewport={"width": 390, "height": 844}) as page:
        page.goto(f"{live_server.url}/docs")
        page.wait_for_selector("h2:has-text('OpenAI')")
        assert page.locator("h2").count() > 5
        text = page.text_content("main")
        assert [word for word in ("`", "Loading") if word in text] == []
        page.click("summary:has(code:text-is('/generate'))")
        page.fill("details[open] textarea", '{"prompt": "Once", "max_tokens": 3, "stream": true}')
        page.click("details[open] >> text=Send")
        page.wait_for_function(
            "() => /^200[^]*event: done/.test(document.querySelector('details[open] div pre').textContent)"
        )
        assert violations(page) == []


@thorough
def test_the_show_says_how_long_streams_paused_beside_a_long_prompt(page: Any) -> None:
    page.click("#show-me")
    words = wait_for_text(page, "#show-words", "3 of 3")
    found = re.search(r"prompt of ([\d,]+) tokens had .* after ([\d,.]+) ms\. The .* was ([\d,.]+) ms\.$", words)
    assert found, words
    length, first, pause = (float(text.replace(",", "")) for text in found.groups())
    assert length == 504
    assert 0 < pause < first + 500
    page.wait_for_function("() => !document.getElementById('show-me').disabled")


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
        foreign = send(keyed_server.url, key="bob", prompt="the secret of bob", max_tokens=20)
        send(keyed_server.url, key="alice", max_tokens=10)
        page.wait_for_function(
            "(seen) => document.getElementById('lanes-canvas').getAttribute('aria-label').startsWith(seen)",
            arg=f"{num_seen} requests in view, 0",
        )
        page.fill("#explain-number", "0")
        page.click("#explain-button")
        assert ("came with" in page.text_content("#dialog-body")) is (num_seen == 2)
        assert foreign not in page.content()


def test_hostile_text_stays_text(browser: Any, live_server: ServerProcess) -> None:
    hello = {"model": HOSTILE, "batching_policy": HOSTILE, "budget": 1, "num_blocks": 1}
    with watched_page(browser, expected=("Failed to load", "ERR_")) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"the page asked {dialog.message}"))
        page.route("**/stats/stream", lambda route: route.fulfill(body=f"event: hello\ndata: {json.dumps(hello)}\n\n"))
        page.goto(f"{live_server.url}/engine")
        page.wait_for_function("(text) => document.getElementById('now').textContent.includes(text)", arg=HOSTILE)
        assert page.evaluate("document.querySelectorAll('header p img, header p script').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible(browser: Any, live_server: ServerProcess, scheme: str, width: int) -> None:
    with watched_page(browser, color_scheme=scheme, viewport={"width": width, "height": 844}) as page:
        page.goto(f"{live_server.url}/engine")
        wait_for_text(page, "#about", "policy")
        send(live_server.url, max_tokens=10)
        wait_for_lanes(page)
        assert violations(page) == []
        page.click("#lanes-canvas", position={"x": width * 0.8, "y": 4})
        wait_for_text(page, "#dialog-body", "ended")
        assert violations(page) == []
        page.click("#dialog-close")
        page.click("#show-me")
        wait_for_text(page, "#show-words", "1 of 3")
        assert violations(page) == []


@thorough
@pytest.mark.parametrize("width", [400, 320])
def test_it_fits_a_narrow_window(browser: Any, live_server: ServerProcess, width: int) -> None:
    with watched_page(browser, viewport={"width": width, "height": 800}) as page:
        page.goto(f"{live_server.url}/engine")
        wait_for_text(page, "#about", "policy")
        send(live_server.url, max_tokens=10)
        wait_for_lanes(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body")
