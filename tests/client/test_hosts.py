"""Addresses of this machine, and the way to reach them."""

import socket

import pytest

from splitfuse.client.hosts import free_port, in_url, is_loopback, reachable


@pytest.mark.parametrize(
    ("host", "is_local", "url"),
    [
        ("127.0.0.1", True, "127.0.0.1"), ("127.8.8.8", True, "127.8.8.8"), ("localhost", True, "localhost"),
        ("::1", True, "[::1]"), ("0.0.0.0", False, "127.0.0.1"), ("", False, "127.0.0.1"), ("::", False, "[::1]"),
        ("10.0.0.7", False, "10.0.0.7"), ("example.org", False, "example.org"),
    ],
)  # fmt: skip
def test_a_host(host: str, is_local: bool, url: str) -> None:
    assert is_loopback(host) is is_local
    assert in_url(reachable(host)) == url


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))) as listener:
        assert listener.getsockname()[1] > 0
