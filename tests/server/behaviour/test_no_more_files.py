"""A server that can open no more files: what needs a new process is 503 then, and works afterwards.

The process of the chat template starts before the server is ready, so the chat goes on.
"""

import contextlib
import resource

import httpx
from serving import ServerProcess

GRAMMAR = {"prompt": "a", "max_tokens": 3, "structured_outputs": {"regex": "[a-z]{2}"}}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@contextlib.contextmanager
def no_more_files(process_id):
    soft, hard = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
    resource.prlimit(process_id, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, (soft, hard))


def test_what_needs_a_process_is_unavailable_and_comes_back():
    with ServerProcess() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        for route, body in (("/v1/completions", {"prompt": "a", "max_tokens": 1}), ("/v1/chat/completions", CHAT)):
            assert client.post(route, json=body).status_code == 200
        for _ in range(2):
            with no_more_files(server.process.pid):
                response = client.post("/v1/completions", json=GRAMMAR)
                assert (response.status_code, response.json()["error"]["type"]) == (503, "service_unavailable")
                assert int(response.headers["Retry-After"]) >= 1
                assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert len(client.post("/v1/completions", json=GRAMMAR).json()["choices"][0]["text"]) == 2
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
