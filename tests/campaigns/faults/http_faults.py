"""Faults on the wire: readers that do not read, foreign pages, too many connections, heads that are too large."""

import time

from faults.fault import Fault, Seen, complete, crowd, first_line, post_bytes, timed
from served import Served


def unread_polls() -> Seen:
    with Served() as served, served.client(timeout=120) as client:
        body = {"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "n": 16, "logprobs": 20}
        url = client.post("/generate", json=body).json()["result_url"]
        while client.get(url + "?wait=30").json()["status"] != "completed":
            pass
        before = served.usage().rss_mb
        slowest = 0.0
        with crowd(served, f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), 60):
            for _ in range(8):
                status, seconds = timed(lambda: served.status("/health", timeout=20))
                slowest = max(slowest, seconds)
            grown = served.usage().rss_mb - before
    return Seen(status == 200 and slowest < 1 and grown < 200, f"/health within {slowest:.1f} s, {grown:+.0f} MiB")


def foreign_page() -> Seen:
    asked = {
        "Host": {"Host": "evil.example.com"},
        "Origin": {"Origin": "https://evil.example", "Content-Type": "text/plain"},
        "Sec-Fetch-Site": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    }
    with Served() as served, served.client() as client:
        told = {
            name: client.post("/generate", json={"prompt": "x"}, headers=headers).status_code
            for name, headers in asked.items()
        }
        own = client.post("/generate", json={"prompt": "x"}, headers={"Origin": served.url}).status_code
    return Seen(all(400 <= status < 500 for status in told.values()) and own == 202, f"{told}, its own page {own}")


def allowed_methods() -> Seen:
    with Served() as served, served.client() as client:
        allow = client.put("/result/x").headers.get("allow", "")
    return Seen({"GET", "DELETE"} <= {method.strip() for method in allow.split(",")}, f"Allow: {allow}")


def many_connections() -> Seen:
    with Served("--max-connections", "50") as served, crowd(served, b"GET", 50):
        time.sleep(0.5)
        line = first_line(served, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return Seen(line.startswith("HTTP/1.1 503") or not line, f"one more gets {line or 'no answer'}")


def large_heads() -> Seen:
    heads = {
        "40 KiB": "X: " + "x" * 40_000,
        "6,000 fields": "\r\n".join(f"X{i}: 1" for i in range(6000)),
    }
    with Served() as served:
        told = {
            name: first_line(served, f"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n\r\n".encode())
            for name, head in heads.items()
        }
    return Seen(not any(line.startswith("HTTP/1.1 2") for line in told.values()), str(told))


def half_close() -> Seen:
    body = {"prompt": "Once", "max_tokens": 3}
    with Served() as served, served.client() as client:
        line = first_line(served, post_bytes("/generate", body), half_close=True)
        after = complete(client).status_code
    return Seen(line.startswith("HTTP/1.1 202") and after == 200, line or "no answer")


FAULTS = (
    Fault("R6", "60 polls of a large result, unread", "/health within 1 s, 200 MiB at most", unread_polls),
    Fault("R10", "a foreign page or host", "refused; its own page is served", foreign_page),
    Fault("R14", "PUT /result/x", "405 with every method of the path", allowed_methods),
    Fault("R15", "one connection more than --max-connections", "503, or closed", many_connections),
    Fault("R16", "heads of 40 KiB or 6,000 fields", "refused", large_heads),
    Fault("R20", "a client that half-closes after its request", "it gets its answer", half_close),
)
