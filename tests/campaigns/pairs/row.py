"""A row: one server under mixed load and an event, and the judgement of its answers."""

import contextlib
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from pairs.doors import DOORS, comparable
from pairs.files import Files
from pairs.switches import Row
from served import SERVE, Served

NUM_CLIENTS = 6
_SETTINGS = ("--num-threads", "1", "--served-model-name", "pairs", "--tool-call-parser", "hermes",
             "--reasoning-parser", "deepseek_r1")  # fmt: skip
_BUSY = (429, 503)  # come back later


@dataclass(frozen=True)
class Asked:
    """A request, and the values of its switches."""

    row: Row
    body: dict[str, Any]


@dataclass
class Judged:
    """What was seen."""

    num_answers: int = 0
    num_different: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.num_answers} answers, {self.num_different} different, {len(self.faults)} faults"

    @property
    def is_wrong(self) -> bool:
        """True if an answer differed or a server did what it must not do."""
        return bool(self.num_different or self.faults)

    def add(self, other: "Judged") -> None:
        """Add what another row has seen."""
        self.num_answers += other.num_answers
        self.num_different += other.num_different
        self.faults += other.faults


def answer_of(result: dict[str, Any]) -> Any:
    """Return all of a result that must be equal."""
    names = ("text", "token_ids", "finish_reason", "stop_reason", "logprobs")
    outputs = [{name: output.get(name) for name in names} for output in result["outputs"]]
    return json.loads(
        json.dumps([result["status"], outputs, result.get("prompt_logprobs"), result["usage"]["completion_tokens"]])
    )


def asked_by(row: Row, asked: Sequence[Asked]) -> list[Asked]:
    """Return the requests that a server takes."""
    doors = [Asked({"door": name}, door.body) for name, door in DOORS.items() if door.needs.items() <= row.items()]
    return [*asked, *doors]


def undisturbed(row: Row, asked: Sequence[Asked], files: Files) -> dict[str, Any]:
    """Return the answers of a server that does nothing else, one after the other."""
    answers = {}
    with Served(*_SETTINGS, *files.arguments(row, "")) as server, server.client(timeout=120) as client:
        for request in asked_by(row, asked):
            door = DOORS.get(request.row["door"])
            found = answer_of(_polled(client, request.body)) if door is None else comparable(door.answer(client))
            answers[str(request.row)] = found
    return answers


def run_row(
    row: Row,
    asked: Sequence[Asked],
    expected: Mapping[str, Any],
    files: Files,
    *,
    folder: str,
    seconds: float,
    seed: int,
    program: Sequence[str] = SERVE,
    until_found: bool = False,
) -> Judged:
    """Run a server under load, for the time or until something is wrong; return how its answers compare."""
    args = (*_SETTINGS, *files.arguments(row, folder))
    judged = Judged()
    try:
        with Served(*args, program=program) as first:
            load = _Load(first, row, asked_by(row, asked), expected, files.weights(row), seed=seed)
            server = load.run(args, seconds=seconds, until_found=until_found)
            try:
                judged = load.judged
                server.until_idle(key="key-of-all" if row["keys"] == "two" else None)
                judged.faults += ["a traceback in the log: " + server.log[-800:]] if "Traceback" in server.log else []
            finally:
                if server is not first:
                    server.__exit__(None, None, None)
    except (AssertionError, RuntimeError, httpx.HTTPError) as exc:
        judged.faults.append(f"{type(exc).__name__}: {exc}"[:1500])
    judged.faults = [f"{' '.join(f'{k}={v}' for k, v in row.items())}: {fault}" for fault in judged.faults]
    return judged


class _Load:
    """Clients that ask until the time is over, and one event after the other."""

    def __init__(
        self,
        server: Served,
        row: Row,
        asked: Sequence[Asked],
        expected: Mapping[str, Any],
        weights: str,
        *,
        seed: int,
    ) -> None:
        self.judged = Judged()
        self._server, self._row, self._seed = server, row, seed
        self._asked, self._expected, self._weights = asked, expected, weights
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def run(self, args: Sequence[str], *, seconds: float, until_found: bool = False) -> Served:
        """Return the server that runs at the end."""
        with ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
            clients = [
                pool.submit(self._client, random.Random(f"{self._seed} {number}")) for number in range(NUM_CLIENTS)
            ]
            try:
                self._events(args, until=time.monotonic() + seconds, until_found=until_found)
            finally:
                self._is_over.set()
            for client in clients:
                client.result()
        return self._server

    def _headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer key-of-{name}"} if self._row["keys"] == "two" else {}

    def _events(self, args: Sequence[str], *, until: float, until_found: bool) -> None:
        event, rng = self._row["event"], random.Random(self._seed)
        while (left := until - time.monotonic()) > 0 and not (until_found and self.judged.is_wrong):
            time.sleep(min(left, rng.uniform(0.5, 3)))
            if event == "kill" and left > 8:
                self._server.process.kill()
                self._server.process.wait()
                port = self._server.port
                self._server = Served(*args, port=port).until_ready()
            elif event in ("pause", "sleep", "weights"):
                steps = {"pause": ("/pause?mode=keep", "/resume"), "sleep": ("/sleep?level=1&mode=keep", "/wake_up")}
                for path in steps.get(event, ("/weights",)):
                    body = {"path": self._weights, "mode": "keep"} if event == "weights" else None
                    with self._server.client(timeout=120) as client:
                        reply = client.post(path, json=body, headers=self._headers("all"))
                    if reply.status_code >= 400:
                        self._fault(f"{path}: {reply.status_code} {reply.text[:300]}")
                    time.sleep(rng.uniform(0, 0.5))

    def _client(self, rng: random.Random) -> None:
        while not self._is_over.is_set():
            request = rng.choice(self._asked)
            # TransportError: the server was killed.
            with contextlib.suppress(httpx.TransportError), self._server.client(timeout=120) as client:
                client.headers.update(self._headers(rng.choice(["the-first", "the-other"])))
                if self._row["event"] == "aborts" and request.row["door"] not in DOORS and rng.random() < 0.4:
                    self._abort(client, request.body, rng)
                else:
                    self._compare(request, client, rng)

    def _abort(self, client: httpx.Client, body: dict[str, Any], rng: random.Random) -> None:
        with client.stream("POST", "/generate", json={**body, "stream": True}) as reply:
            num_lines = rng.choice([0, rng.randint(0, 60)])  # 0: while the prompt is computed
            for _, _line in zip(range(num_lines), reply.iter_lines(), strict=False):
                pass

    def _compare(self, request: Asked, client: httpx.Client, rng: random.Random) -> None:
        door = DOORS.get(request.row["door"])
        try:
            if door is None:
                found = answer_of(_result(client, request, rng, has_kills=self._row["event"] == "kill"))
            else:
                found = comparable(_checked(door.answer(client)))
        except _LaterError:
            time.sleep(0.2)
            return
        except _FaultError as exc:
            if self._row["event"] != "weights" or "have changed since this answer" not in str(exc):  # so no fork of it
                self._fault(f"{request.row}: {exc}")
            return
        expected = self._expected[str(request.row)]
        with self._lock:
            self.judged.num_answers += 1
            if found != expected:
                self.judged.num_different += 1
                if self.judged.num_different <= 3:
                    told = f"{found!s:.900} instead of {expected!s:.900}" if door else _difference(found, expected)
                    self.judged.faults.append(f"{request.row}: {told}")

    def _fault(self, text: str) -> None:
        with self._lock:
            self.judged.faults.append(text)


class _LaterError(Exception):
    """The server is busy, sleeps, or was killed."""


class _FaultError(Exception):
    """The server did what it must not do."""


def _result(client: httpx.Client, request: Asked, rng: random.Random, *, has_kills: bool) -> dict[str, Any]:
    """Return the result by the request's door."""
    door = request.row["door"]
    if door in ("poll", "twice"):
        key = {"Idempotency-Key": f"{rng.getrandbits(64):x}"} if door == "twice" else {}
        result = _polled(client, request.body, headers=key, has_kills=has_kills)
        if door == "twice":
            again = _answered(client.post("/generate", json=request.body, headers=key))
            if again["seq_id"] != result["seq_id"]:
                raise _FaultError("the same Idempotency-Key gave another result")
        return result
    if door == "fork":
        return _forked(client, _polled(client, request.body, has_kills=has_kills), rng, has_kills=has_kills)
    if door == "attach":
        return _attached(client, _answered(client.post("/generate", json=request.body)), rng)
    body = {**request.body, "stream": True, **({"durable": True} if door == "durable" else {})}
    read = _Read()
    with client.stream("POST", "/generate", json=body) as reply:
        read.all_of(reply)
    return read.result()


class _Read:
    """What has been read of a stream, in one response or several."""

    def __init__(self) -> None:
        self._done: dict[str, Any] | None = None
        self._texts: dict[int, str] = {}
        self.last_id = ""

    def all_of(self, reply: httpx.Response, *, most: int | None = None) -> None:
        """Read events to the end, or at most so many of them."""
        if reply.status_code != 200:
            reply.read()
            _answered(reply)
        event, num_events = "", 0
        for line in reply.iter_lines():
            event = line.removeprefix("event: ") if line.startswith("event: ") else event
            self.last_id = line.removeprefix("id: ") if line.startswith("id: ") else self.last_id
            data = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else None
            if data is not None and event == "token":
                self._texts[data["index"]] = self._texts.get(data["index"], "") + data["text"]
            elif data is not None and event == "done":
                self._done = data
            elif data is not None:
                is_later = data["error"]["code"] in ("draining", "cancelled")
                raise _LaterError if is_later else _FaultError(str(data)[:300])
            num_events += data is not None
            if num_events == most and line == "":
                return

    def result(self) -> dict[str, Any]:
        """Return the result, whose text must be the stream's."""
        if self._done is None:
            raise _LaterError
        if any(self._texts.get(output["index"], "") != output["text"] for output in self._done["outputs"]):
            raise _FaultError("the stream's text is not the result's")
        return self._done


def _attached(client: httpx.Client, job: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the result of a job whose stream is cut and taken up again."""
    read = _Read()
    for most in (rng.randint(1, 9), rng.randint(1, 9), None):
        headers = {"Last-Event-ID": read.last_id} if read.last_id else {}
        with client.stream("GET", f"/result/{job['seq_id']}/stream", headers=headers) as reply:
            read.all_of(reply, most=most)
    return read.result()


def _forked(client: httpx.Client, result: dict[str, Any], rng: random.Random, *, has_kills: bool) -> dict[str, Any]:
    """Return the result, of which a fork without a change must be the same."""
    number = rng.randrange(len(result["outputs"]))
    output = result["outputs"][number]
    if output["token_ids"]:
        body = {"seq_id": result["seq_id"], "output": number, "at": rng.randrange(len(output["token_ids"]))}
        (fork,) = _polled(client, body, path="/fork", has_kills=has_kills)["outputs"]
        names = ("token_ids", "text", "finish_reason", "stop_reason")
        if [fork.get(name) for name in names] != [output.get(name) for name in names]:
            raise _FaultError(f"a fork at {body['at']}: {fork} of {output}"[:700])
    return result


def _polled(
    client: httpx.Client,
    body: dict[str, Any],
    *,
    path: str = "/generate",
    headers: dict[str, str] | None = None,
    has_kills: bool = False,
) -> dict[str, Any]:
    result = _answered(client.post(path, json=body, headers=headers))
    deadline = time.monotonic() + 180
    while "outputs" not in result or result["status"] in ("queued", "running"):
        try:
            result = _answered(client.get(f"/result/{result['seq_id']}", params={"wait": 10}))
        except (httpx.TransportError, _LaterError):
            if not has_kills or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        if time.monotonic() > deadline:
            raise _FaultError(f"no end within 180 s: {result['status']}")
    return result


def _answered(reply: httpx.Response) -> dict[str, Any]:
    value: dict[str, Any] = _checked(reply).json()
    return value


def _checked(reply: httpx.Response) -> httpx.Response:
    if reply.status_code in _BUSY:
        raise _LaterError
    if reply.status_code >= 300:
        raise _FaultError(f"{reply.request.method} {reply.request.url.path}: {reply.status_code} {reply.text[:300]}")
    return reply


def _difference(found: Any, expected: Any) -> str:
    for one, other in zip(found[1], expected[1], strict=False):
        for name in one:
            if one[name] != other.get(name):
                return f"{name}: {str(one[name])[:200]} instead of {str(other.get(name))[:200]}"
    return f"{str(found)[:200]} instead of {str(expected)[:200]}"
