"""A webhook over real processes: the end of a result is told, also when the server died before it could be."""

import base64
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
from answering import answering, read_body, reply
from kept_results import ARGS, PROMPT
from serving import ServerProcess

BODY = {"prompt": PROMPT, "max_tokens": 5, "webhook": "ops"}


class Receiver:
    """Receiver of webhooks that answers these statuses, the last of them again and again."""

    def __init__(self) -> None:
        self.statuses = [204]
        self.came = threading.Semaphore(0)
        self.messages: list[tuple[dict[str, str], bytes]] = []

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        self.messages.append((dict(handler.headers.items()), read_body(handler)))
        reply(handler, self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])
        self.came.release()


def test_the_end_is_told_over_a_crash(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.statuses = [500, 204]
    (tmp_path / "secret").write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    with answering(receiver.take) as target:
        url = f"{target}/done"
        args = (*ARGS, "--results", str(tmp_path / "results.db"))
        args += ("--webhook-targets", f"ops={url}", "--webhook-secret-file", str(tmp_path / "secret"))
        with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            for refused in ({**BODY, "webhook": url}, {**BODY, "stream": True}):
                answer = client.post("/generate", json=refused)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook"), answer.text
            seq_id = client.post("/generate", json=BODY).json()["seq_id"]
            assert receiver.came.acquire(timeout=240)
            server.process.kill()
        with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            assert receiver.came.acquire(timeout=240)
            asked = {"input": "a", "background": True, "max_output_tokens": 5, "webhook": "ops"}
            response_id = client.post("/v1/responses", json=asked).json()["id"]
            assert receiver.came.acquire(timeout=240)
    ids = [headers["webhook-id"] for headers, _ in receiver.messages]
    assert ids == [f"msg_{seq_id}"] * 2 + [f"msg_{response_id.removeprefix('resp_')}"]
    assert receiver.messages[0][1] == receiver.messages[1][1]
