"""What both clients share beside the calls: where the server is, the key, the patience, a stream's state."""

import ipaddress
import os
from typing import Any

import httpx

from .actions import Submitted
from .events import StreamEvent
from .results import Result
from .retry import Patience
from .transport import Returned

DEFAULT_BASE_URL = "http://127.0.0.1:8000"


class BaseClient:
    """`patience` may be replaced by one with other pauses."""

    def __init__(self, base_url: str | None, api_key: str | None, timeout: float | None, max_retries: int) -> None:
        url = base_url or os.environ.get("SPLITFUSE_BASE_URL") or DEFAULT_BASE_URL
        self.base_url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.patience = Patience(timeout=timeout, max_retries=max_retries)
        self._api_key = _key_of_environment() if api_key is None else api_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def http_options(self) -> dict[str, Any]:
        """How httpx is to reach the server."""
        options: dict[str, Any] = {
            "base_url": self.base_url,
            "headers": {"authorization": f"Bearer {self._api_key}"} if self._api_key else {},
            "trust_env": not _is_this_machine(httpx.URL(self.base_url).host),  # no proxy leads to a loopback address
            # below the 5 s after which uvicorn closes an idle connection: a POST must not meet a closing one
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0),
        }
        return options


class BaseStream:
    """What is known of a stream: `seq_id`, and after the end `result`."""

    def __init__(self, seq_id: str | None) -> None:
        self.seq_id = seq_id
        self.result: Result | None = None
        self._has_ended = False

    def _note(self, outcome: StreamEvent | Submitted | Returned[Result]) -> StreamEvent | None:
        """Keep what the steps told; returns the event for the caller, if it is one."""
        if isinstance(outcome, Submitted):
            self.seq_id = outcome.seq_id
            return None
        if isinstance(outcome, Returned):
            self._has_ended = True
            return None
        if outcome.result is not None:
            self.result = outcome.result
        return outcome


def _key_of_environment() -> str:
    # the server reads several keys from the same variable, with commas
    return os.environ.get("SPLITFUSE_API_KEY", "").split(",")[0].strip()


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
