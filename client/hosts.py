"""Host names and ports of this machine."""

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def in_url(host: str) -> str:
    """Return `host` in the form of a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def free_port(host: str) -> int:
    """Return a port of `host` that is free now; another process may take it before its use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
