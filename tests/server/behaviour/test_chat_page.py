"""The chat in a real browser: its twelve points on a wide and a narrow screen, and the states of the server."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import chromium, violations, watched_page
from serving import ServerProcess, SlowSteps

from splitfuse.engine.config.named_models import DEMO_FOLDER

thorough = pytest.mark.thorough  # `make page` runs these; CI a whole conversation and axe, at 390 px
SIZES = {1280: {"width": 1280, "height": 800}, 390: {"width": 390, "height": 844}}
GO_ON = ".actions button:has-text('Go on')"
MARKDOWN = """# Title

Some **bold**, *soft* and `code`, a [link](https://example.org/a) and a [bad one](javascript:alert(1)).

- one
  - two
1. three

| a | b |
|---|--:|
| 1 | 2 |

```python
print("<b>hi</b>")  # comment
```

<img src=x onerror=alert(1)><script>alert(2)</script>"""

# The next answer begins and does not end by itself.
ENDLESS = """() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    if (!path.endsWith("chat/completions")) return real(path, options);
    window.fetch = real;
    const chunk = 'data: {"choices": [{"delta": {"content": "words"}}]}\\n\\n';
    return Promise.resolve(new Response(new ReadableStream({start(stream) {
      stream.enqueue(new TextEncoder().encode(chunk));
      options.signal.addEventListener("abort", () => stream.error(options.signal.reason));
    }})));
  };
}"""


# The next answer thinks until its thinking is stopped, and then has content.
THINKING = r"""() => {
  const real = window.fetch, write = new TextEncoder();
  const chunk = (delta, more) => write.encode(`data: ${JSON.stringify({choices: [{delta}], ...more})}\n\n`);
  let stream;
  window.fetch = (path, options) => {
    if (path === "result/own-id/stop_thinking" && options.method === "POST") {
      const usage = {completion_tokens: 9, completion_tokens_details: {reasoning_tokens: 7}};
      stream.enqueue(chunk({content: "words"}, {usage}));
      stream.enqueue(write.encode("data: [DONE]\n\n"));
      stream.close();
      return Promise.resolve(new Response("{}"));
    }
    const told = '{"ttft_s": null, "status": "completed"}';
    if (path === "result/own-id") return Promise.resolve(new Response("{}"));
    if (path === "result/own-id/explain") return Promise.resolve(new Response(told));
    if (!path.endsWith("chat/completions")) return real(path, options);
    const body = new ReadableStream({start(own) {
      stream = own;
      for (const piece of ["Let", " me"]) stream.enqueue(chunk({reasoning_content: piece}));
    }});
    return Promise.resolve(new Response(body, {headers: {"X-Seq-Id": "own-id"}}));
  };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


WIDTHS = [pytest.param(1280, marks=thorough), 390]


@pytest.fixture(params=WIDTHS, ids=str)
def page(request: pytest.FixtureRequest, browser: Any, live_server: ServerProcess) -> Iterator[Any]:
    options = {"viewport": SIZES[request.param], "accept_downloads": True}
    with watched_page(browser, **options) as page:
        opened(page, live_server.url)
        yield page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def opened(page: Any, url: str, query: str = "") -> None:
    """Open the chat and wait for the model's name."""
    page.goto(f"{url}/{query}")
    page.wait_for_function("() => document.getElementById('model').textContent")


def settle(page: Any, **values: object) -> None:
    """Keep settings in the page's own dialog."""
    page.click("#settings")
    for name, value in values.items():
        page.fill(f"[name={name}]", str(value))
    page.click("#settings-form .main")


def ask(page: Any, text: str, *, answers: int = 1) -> None:
    """Send a message, and wait until so many answers are complete."""
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    complete(page, answers)


def complete(page: Any, answers: int) -> None:
    page.wait_for_function(
        "(count) => document.querySelectorAll('.assistant:not(.running) .stats').length === count"
        " && !document.querySelector('.running')",
        arg=answers,
    )


def show_list(page: Any) -> None:
    if page.is_visible("#open-list"):
        page.click("#open-list")


def streamed(*deltas: dict[str, Any], usage: dict[str, Any] | None = None) -> Callable[[Any], None]:
    """Return a handler that answers a chat with these deltas."""
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append(
        {
            "choices": [],
            "usage": usage
            or {"prompt_tokens": 512, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 480}},
        }
    )
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return lambda route: route.fulfill(body=body, headers={"Content-Type": "text/event-stream"})


def test_turns_are_kept_found_renamed_deleted_and_exported(page: Any, tmp_path: Path) -> None:
    """Points 1 and 2."""
    settle(page, max_tokens=5)
    ask(page, "Tell me about a lighthouse")
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "And then?", answers=2)
    assert [message["role"] for message in sent.value.post_data_json["messages"]] == ["user", "assistant", "user"]
    page.reload()
    complete(page, 2)
    show_list(page)
    page.fill("#search", "nothing has these words")
    assert page.locator("#chats .open").count() == 0
    page.fill("#search", "then lighthouse")
    assert page.locator("#chats .open").count() == 1
    page.hover("#chats li")
    page.click("#chats [title=Rename]")
    page.fill("#chats input", "Towers")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('title').textContent === 'Towers'")
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "chats.json")
    page.hover("#chats li")
    page.click("#chats [title=Delete]")
    page.wait_for_function("() => !document.querySelector('#chats .open')")
    page.set_input_files("#imported", str(tmp_path / "chats.json"))
    page.wait_for_function("() => document.querySelector('#chats .open')?.textContent === 'Towers'")
    show_list(page)
    page.click("#chats .open")
    complete(page, 2)


@thorough
def test_markdown_is_shown_and_html_is_not(page: Any) -> None:
    """Point 3."""
    page.route(
        "**/chat/completions", streamed(*({"content": MARKDOWN[at : at + 7]} for at in range(0, len(MARKDOWN), 7)))
    )
    ask(page, "Hello")
    prose = ".assistant > .prose"
    for name in ("h3", "strong", "em", "p code", "ul ul li", "ol li", "table td.right", ".code .code-string"):
        assert page.locator(f"{prose} {name}").count() >= 1, name
    assert page.locator(f"{prose} a").count() == 1
    assert page.get_attribute(f"{prose} a", "rel") == "noopener noreferrer nofollow"
    assert page.locator(f"{prose} :is(img, script, b)").count() == 0
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click(f"{prose} [title='Copy code']")
    page.wait_for_selector(f"{prose} [aria-label=Copied]")
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>hi</b>")  # comment'


@thorough
def test_formulas_are_laid_out(page: Any) -> None:
    """Every formula of test_math.json has a place on the page: fractions above each other, roots and scripts beside."""
    shown = json.loads((Path(__file__).parents[1] / "extras/page/test_math.json").read_text())["shown"]
    formulas = [source for source, markup in shown.items() if markup.startswith("<math>")]
    assert len(formulas) >= 40
    page.route("**/chat/completions", streamed({"content": "\n\n".join(formulas)}))
    ask(page, "Hello")
    boxes = page.evaluate("""[...document.querySelectorAll(".assistant math")].map((formula) => {
      const box = (part) => part.getBoundingClientRect();
      const pairs = (name, gap) => [...formula.querySelectorAll(name)].map(
        ({children: [one, other]}) => gap(box(one), box(other)));
      const fractions = pairs("mfrac", (over, under) => under.top - over.bottom);
      const powers = pairs("msup", (base, power) => base.bottom - power.bottom);
      return {width: box(formula).width, height: box(formula).height, fractions, powers};
    })""")
    assert len(boxes) == len(formulas)
    assert [source for source, box in zip(formulas, boxes, strict=True) if min(box["width"], box["height"]) < 5] == []
    assert min(gap for box in boxes for gap in box["fractions"]) > -1, "the denominator is below"
    assert min(rise for box in boxes for rise in box["powers"]) > 0


@thorough
def test_settings_are_kept_and_sent(page: Any, live_server: ServerProcess) -> None:
    """Points 4 and 9."""
    page.click("#settings")
    assert "the model's" in page.get_attribute("[name=temperature]", "placeholder")
    page.click("#settings-close")
    settle(page, system="Be brief.", max_tokens=3, temperature=0, seed=7, stop="END")
    opened(page, live_server.url)
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Hello")
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["max_tokens"], body["temperature"], body["seed"], body["stop"]) == (3, 0, 7, ["END"])
    assert "top_p" not in body
    assert "Be brief." in page.text_content(".system")


@thorough
def test_stop_again_edit_and_branches(page: Any) -> None:
    """Points 5 and 12."""
    page.evaluate(ENDLESS)
    page.fill("#prompt", "One day, a little girl")
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#prompt").endswith("\n")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.running > .prose')?.textContent === 'words'")
    page.keyboard.press("Escape")
    complete(page, 1)
    assert page.text_content(".assistant .stats").startswith("stopped")
    settle(page, max_tokens=4)
    page.click(".assistant [title='Answer again']")
    page.wait_for_function("() => document.querySelector('.assistant .count')?.textContent === '2/2'")
    complete(page, 1)
    page.hover(".user")
    page.click(".user [title=Edit]")
    page.fill(".editor textarea", "Another day")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.user .count')?.textContent === '2/2'")
    complete(page, 1)
    page.hover(".user")
    page.click(".user [title='Earlier version']")
    page.wait_for_function("() => document.querySelector('.user .bubble').textContent.startsWith('One day')")
    assert page.text_content(".assistant .count") == "2/2"


def answer_of(page: Any) -> str:
    """Return the text of the shown answer."""
    text: str = page.text_content(".assistant > .prose").strip()
    return text


def never_ending(route: Any) -> None:
    """Let an answer go on to its limit of tokens."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))


def test_a_reload_keeps_the_answer_coming(page: Any, live_server: ServerProcess, slow: SlowSteps) -> None:
    """The server forgets an answer once the page has all of it, or is told to stop."""
    page.route("**/v1/chat/completions", never_ending)
    settle(page, max_tokens=60, temperature=0)
    slow.off()
    ask(page, "One day, a little girl")
    whole = answer_of(page)
    slow.on()
    opened(page, live_server.url)
    page.fill("#prompt", "One day, a little girl")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.running > .prose')?.textContent.length > 20")
    page.reload()
    page.wait_for_function("() => document.querySelector('.running > .prose')?.textContent.length > 20")
    assert not page.is_visible(GO_ON)
    with page.expect_request(lambda request: request.method == "DELETE") as forgotten:
        slow.off()
        complete(page, 1)
    assert answer_of(page) == whole
    assert forgotten.value.response().status == 200
    page.reload()
    complete(page, 1)
    assert answer_of(page) == whole


def test_a_cut_answer_is_marked_and_goes_on(page: Any) -> None:
    settle(page, max_tokens=8, temperature=0)
    ask(page, "One day")
    whole = answer_of(page)
    settle(page, max_tokens=4)
    page.click(".assistant [title='Answer again']")
    page.wait_for_function("() => document.querySelector('.assistant .count')?.textContent === '2/2'")
    complete(page, 1)
    assert len(answer_of(page)) < len(whole)
    assert "cut at the limit" in page.text_content(".assistant .stats")
    page.focus(GO_ON)
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(text) => document.querySelector('.assistant > .prose').textContent.trim() === text", arg=whole
    )
    complete(page, 1)
    assert page.text_content(".assistant .count") == "2/2", "the same branch"


@thorough
def test_an_answer_of_a_server_that_has_restarted_is_marked(page: Any) -> None:
    page.evaluate(ENDLESS)
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.running > .prose')?.textContent === 'words'")
    page.reload()
    page.wait_for_selector(GO_ON)
    assert page.text_content(".assistant .stats").startswith("cut off")


def branches_of(page: Any, *, count: int) -> list[str]:
    """Return the labels of the shown answer's tree, once it has so many branches and its answer is complete."""
    page.wait_for_function("(count) => document.querySelectorAll('.tree button').length === count", arg=count)
    complete(page, 1)
    return list(page.locator(".tree button").all_text_contents())


def opened_words(page: Any) -> Any:
    """Open the words of the shown answer by the keyboard."""
    page.focus(".chances > summary")
    page.keyboard.press("Enter")
    page.wait_for_selector(".chances .word")
    return page.locator(".chances .word")


def open_words_of_answers(page: Any) -> None:
    page.click("#settings")
    page.select_option("[name=chances]", "8")
    page.click("#settings-form .main")


def test_a_word_opens_and_the_answer_goes_on_with_another(page: Any) -> None:
    settle(page, max_tokens=8, temperature=0)
    ask(page, "One day")
    assert not page.is_visible(".chances"), "off by default"
    open_words_of_answers(page)
    page.click(".assistant [title='Answer again']")
    page.wait_for_function("() => document.querySelector('.assistant .count')?.textContent === '2/2'")
    complete(page, 1)
    assert page.locator(".tree").count() == 0
    content, words = answer_of(page), opened_words(page)
    was = words.all_text_contents()
    assert "".join(was).strip().startswith(content.split("\n")[0][:10])
    words.nth(3).focus()
    page.keyboard.press("Enter")
    others = page.locator(".near button")
    assert others.count() == 7
    assert "%, number 1." in page.text_content(".near p")
    assert violations(page) == []
    other = others.nth(0).text_content().rpartition(" ")[0].rpartition(" ")[0]
    others.nth(0).focus()
    with page.expect_request("**/fork") as sent:
        page.keyboard.press("Enter")
    assert sent.value.post_data_json["at"] == 3
    label = f"{other} at word 4"
    assert branches_of(page, count=3) == ["Answer 1", "Answer 2", label]
    assert page.evaluate("document.activeElement.textContent") == label, "the keyboard stays in the tree"
    branch = opened_words(page).all_text_contents()
    assert (branch[:3], branch[3]) == (was[:3], other)
    assert len(branch) == 8
    page.locator(".chances .word").nth(5).click()
    page.locator(".near button").nth(1).click()
    twig = branches_of(page, count=4)[3]
    assert twig.endswith("at word 6")
    assert page.locator(".tree ul ul ul button").text_content() == twig
    assert violations(page) == []
    page.reload()
    assert branches_of(page, count=4)[3] == twig
    assert opened_words(page).count() == 8, "the server has the answer after a reload"
    page.focus(".tree button >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(text) => document.querySelector('.assistant > .prose').textContent.trim() === text", arg=content
    )
    assert page.evaluate("document.activeElement.textContent") == "Answer 2"
    assert page.locator(".tree [aria-current]").count() == 1
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#settings")
    with page.expect_request(lambda request: request.method == "DELETE") as forgotten:
        page.click("#remove-all")
    assert forgotten.value.response().status == 200


def test_an_answer_that_the_server_has_forgotten_says_so(browser: Any, live_server: ServerProcess) -> None:
    with watched_page(browser, expected=("404",)) as page:
        opened(page, live_server.url)
        open_words_of_answers(page)
        with page.expect_response("**/chat/completions") as answer:
            ask(page, "One day")
        page.evaluate("(id) => fetch(`result/${id}`, {method: 'DELETE'})", answer.value.headers["x-seq-id"])
        page.click(".chances > summary")
        page.wait_for_selector(".near [role=alert]:has-text('no such result')")


@thorough
def test_thoughts_are_counted_and_can_be_stopped(page: Any) -> None:
    page.evaluate(THINKING)
    page.fill("#prompt", "Think.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".reasoning summary button")
    assert "2 tokens" in page.text_content(".reasoning summary")
    page.click(".reasoning summary button")
    complete(page, 1)
    assert page.text_content(".assistant:last-of-type > .prose").strip() == "words"
    assert "7 tokens" in page.text_content(".reasoning summary")
    assert not page.is_visible(".reasoning button")


@thorough
def test_reasoning_is_folded_and_calls_are_shown_and_answered(page: Any) -> None:
    """Points 6 and 7."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"city": "Lyon"}'}}
    page.route(
        "**/chat/completions",
        streamed({"reasoning_content": "Let me see"}, {"tool_calls": [call]}, {"tool_calls": [more]}),
    )
    ask(page, "The weather?")
    assert "Thought for" in page.text_content(".reasoning summary")
    assert not page.is_visible(".reasoning .prose")
    assert "weather" in page.text_content(".call p")
    assert '"city": "Lyon"' in page.text_content(".call pre")
    page.unroute("**/chat/completions")
    page.route("**/chat/completions", streamed({"content": "It rains."}))
    page.fill(".calls textarea", "rain")
    with page.expect_request("**/chat/completions") as sent:
        page.click(".calls form button")
    complete(page, 2)
    _, asked, result = sent.value.post_data_json["messages"]
    assert asked["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Lyon"}'}
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}


@thorough
def test_text_files_are_dropped_and_pasted(page: Any) -> None:
    """Point 8."""
    put = """([kind, text]) => {
      const data = new DataTransfer();
      if (kind === "drop") data.items.add(new File([text], "notes.txt", {type: "text/plain"}));
      else data.setData("text/plain", text);
      const event = kind === "drop" ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
        : new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true});
      document.getElementById("prompt").dispatchEvent(event);
    }"""
    page.evaluate(put, ["drop", "apples\n"])
    page.wait_for_selector("#attached .chip")
    page.evaluate(put, ["paste", "pears " * 1000])
    page.wait_for_function("() => document.querySelectorAll('#attached .chip').length === 2")
    page.set_input_files("#picked", {"name": "x.bin", "mimeType": "text/plain", "buffer": b"\0\xff"})
    page.wait_for_function("() => document.getElementById('toast')?.textContent.includes('not a text file')")
    page.route("**/chat/completions", streamed({"content": "ok"}))
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "What is in it?")
    content = sent.value.post_data_json["messages"][0]["content"]
    assert content.startswith("File notes.txt:\n```\napples\n")
    assert "pears pears" in content
    assert content.endswith("What is in it?")


@thorough
def test_figures_under_an_answer_open_the_explanation(page: Any) -> None:
    """Points 10 and 11."""
    settle(page, max_tokens=40, temperature=0)
    page.wait_for_function("() => document.getElementById('live-words').textContent")
    ask(page, "One day, a little girl")
    words = page.text_content(".assistant .stats")
    assert "s to the first word" in words
    assert "tokens/s" in words
    assert "prompt tokens from the cache" in words
    page.click(".stats .link")
    assert "its prompt was computed" in page.text_content("#dialog-body")
    page.click("#dialog-close")
    page.wait_for_function("() => !document.getElementById('live-strip').ariaLabel.includes(' 0 steps')")
    colours = """() => { const strip = document.getElementById("live-strip");
      const {data} = strip.getContext("2d").getImageData(0, 0, strip.width, strip.height);
      return new Set(new Uint32Array(data.buffer)).size; }"""
    page.wait_for_function(f"() => ({colours})() > 2")
    assert page.locator("#live-strip").bounding_box()["height"] == 60


@thorough
def test_the_engine_view_is_one_click_away_and_back(page: Any) -> None:
    page.click("header a[href=engine]")
    page.wait_for_function("() => document.getElementById('about').textContent.includes('policy')")
    page.click("header >> text=Chat")
    page.wait_for_function("() => document.getElementById('model').textContent")


@thorough
@pytest.mark.parametrize(
    ("state", "words"), [("loading", "still loading"), ("draining", "shutting down"), ("gone", "does not answer")]
)
def test_a_banner_says_that_the_server_is_away(
    browser: Any, live_server: ServerProcess, state: str, words: str
) -> None:
    error = {"error": {"message": "no", "type": "service_unavailable", "param": None, "code": state}}
    with watched_page(browser, expected=("Failed to load",)) as page:
        page.route(
            "**/ready", lambda route: route.abort() if state == "gone" else route.fulfill(status=503, json=error)
        )
        page.goto(live_server.url)
        page.wait_for_selector("#banner", state="visible")
        assert words in page.text_content("#banner p")
        page.wait_for_function("() => /in [1-4] s/.test(document.querySelector('#banner span').textContent)")
        page.fill("#prompt", "Hello")
        page.keyboard.press("Enter")
        assert page.input_value("#prompt") == "Hello"
        page.unroute("**/ready")
        page.click("#banner button")
        page.wait_for_selector("#banner", state="hidden")


def test_a_model_without_a_template_continues_text(browser: Any, tmp_path: Path) -> None:
    model = tmp_path / "base"
    shutil.copytree(DEMO_FOLDER, model, ignore=shutil.ignore_patterns("chat_template*", "draft"))
    with ServerProcess(str(model), "--dtype", "float32") as server, watched_page(browser) as page:
        opened(page, server.url)
        assert "continues your text" in page.text_content("#hello .for-text")
        assert not page.is_visible("#ideas")
        settle(page, max_tokens=12, temperature=0)
        ask(page, "One day, a little girl")
        prompt = {"prompt": "One day, a little girl", "max_tokens": 24, "temperature": 0}
        text = httpx.post(f"{server.url}/v1/completions", json=prompt).json()["choices"][0]["text"].strip()
        page.click(GO_ON)
        page.wait_for_function(
            "(text) => document.querySelector('.assistant > .prose').textContent.trim() === text", arg=text
        )


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[ServerProcess]:
    with ServerProcess(
        "--dtype", "float32", "--num-kv-blocks", "64", "--max-model-len", "256", "--api-key", "alice"
    ) as server:
        yield server


@thorough
@pytest.mark.parametrize("path", ["/", "/engine"])
def test_a_key_screen_stands_alone(browser: Any, keyed_server: ServerProcess, path: str) -> None:
    with watched_page(browser, expected=("401",)) as page:
        page.goto(keyed_server.url + path)
        page.wait_for_selector("#key-form", state="visible")
        assert not page.is_visible("#app")
        page.fill("#key", "bob")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-form .wrong")
        page.fill("#key", "alice")
        page.keyboard.press("Enter")
        page.wait_for_selector("#app", state="visible")
        page.wait_for_function(
            "() => (document.getElementById('model') ?? document.getElementById('about')).textContent"
        )
        assert page.evaluate("localStorage.length") == 0
        if path == "/":
            settle(page, max_tokens=3)
            ask(page, "Hello")
            assert page.locator(".stats .link").count() == 1


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=thorough), "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_accessible(browser: Any, live_server: ServerProcess, scheme: str, width: int) -> None:
    with watched_page(browser, color_scheme=scheme, viewport=SIZES[width]) as page:
        opened(page, live_server.url)
        assert violations(page) == []
        page.route("**/chat/completions", streamed({"reasoning_content": "Hm"}, {"content": MARKDOWN}))
        ask(page, "Hello")
        assert violations(page) == []
        page.click("#settings")
        assert violations(page) == []
