"""Webhooks: messages to the operator's targets that a kept job has ended, signed after Standard Webhooks 1.0.0.

A message is stored together with the job's end, so it outlives the process. A try is counted there before it is made: a
message arrives at least once, with the same id each time.
"""

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx

from ....engine.errors import SplitfuseError
from ...jobs.webhook_targets import WebhookTargets
from .records import Webhook

_log = logging.getLogger("splitfuse.webhooks")
_POLL_S = 1.0
_AT_ONCE = 16  # messages to one target
_TIMEOUT_S = 10.0  # of one try in all, from the connection to the answer's status
BACKOFFS_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 4 * 3600.0, 16 * 3600.0)  # after each try; the eighth is the last
Use = Callable[[Callable[[Any], Any]], Awaitable[Any]]


class Webhooks:
    """Sender of due messages, which wait in the store. A task per target: a slow target delays its own messages only.

    `use` runs a function with the store; `clock` returns wall clock seconds.
    """

    def __init__(
        self, targets: WebhookTargets, use: Use, *, clock: Callable[[], float], timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._targets = targets
        self._use = use
        self._clock = clock
        self._timeout_s = timeout_s
        self._sending: dict[str, asyncio.Task[None]] = {}  # by target

    async def run(self) -> None:
        """Send due messages forever."""
        try:
            async with new_client() as client:
                while True:
                    await self._ignoring_failures(self.begin_due(client))
                    await asyncio.sleep(_POLL_S)
        finally:
            for task in self._sending.values():
                task.cancel()

    async def begin_due(self, client: httpx.AsyncClient) -> list[asyncio.Task[None]]:
        """Begin to send the due messages of each target to which none are being sent. Raises StoreUnavailableError."""
        now = self._clock()
        targets: list[str] = await self._use(lambda store: store.due_targets(now))
        idle = [target for target in targets if target not in self._sending]
        for target in idle:
            sending = self._ignoring_failures(self._send_all(client, target))
            task = self._sending[target] = asyncio.create_task(sending)
            task.add_done_callback(lambda _, target=target: self._sending.pop(target))  # type: ignore[misc]
        return [self._sending[target] for target in idle]

    async def _send_all(self, client: httpx.AsyncClient, target: str) -> None:
        while due := await self._due(target):
            now = self._clock()
            await asyncio.gather(*(self._ignoring_failures(self._try(client, webhook, now)) for webhook in due))

    async def _due(self, target: str) -> list[Webhook]:
        now = self._clock()
        due: list[Webhook] = await self._use(lambda store: store.due_webhooks(now, limit=_AT_ONCE, target=target))
        return due

    async def _ignoring_failures(self, sending: Awaitable[object]) -> None:
        try:
            await sending
        except SplitfuseError as exc:  # the store is unavailable, or damaged
            _log.info("webhooks: not sent now: %s", exc)
        except Exception:
            _log.exception("webhooks: not sent now")

    async def _try(self, client: httpx.AsyncClient, webhook: Webhook, now: float) -> None:
        next_try = now + BACKOFFS_S[min(webhook.num_tries, len(BACKOFFS_S) - 1)]
        if not await self._use(lambda store: store.begin_webhook(webhook, next_try=next_try)):
            return  # another server has begun it
        status = await self._send(client, webhook, now)
        is_last = webhook.num_tries >= len(BACKOFFS_S)
        is_over = status is not None and (200 <= status < 300 or status == 410)
        if not is_over:
            _log.warning(
                "webhook %s…: %s answered %s at try %d%s",
                *(webhook.webhook_id[:12], webhook.target, status or "nothing", webhook.num_tries + 1),
                "; it is not tried again" if is_last else "",
            )
        if is_over or is_last:
            await self._use(lambda store: store.forget_webhook(webhook.seq_id))

    async def _send(self, client: httpx.AsyncClient, webhook: Webhook, now: float) -> int | None:
        """Send a message. Returns the status of the answer, None without an answer."""
        if (url := self._targets.urls.get(webhook.target)) is None:
            return 410  # the operator removed the target
        body = message(webhook)
        headers = {"Content-Type": "application/json"} | signed(webhook.webhook_id, body, self._targets.secret, now=now)
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                return answer.status_code  # the body is not read: the connection closes here
        except (httpx.HTTPError, TimeoutError):
            return None


def new_client() -> httpx.AsyncClient:
    """Make the client. Proxies of the environment are not used; each target has at most _AT_ONCE connections."""
    return httpx.AsyncClient(
        timeout=_TIMEOUT_S,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        follow_redirects=False,
        trust_env=False,
    )


def message(webhook: Webhook) -> bytes:
    """Build the body: that a job has ended, without its output."""
    timestamp = datetime.fromtimestamp(webhook.finished, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    data = {"id": webhook.seq_id, "status": webhook.status}
    return json.dumps({"type": f"result.{webhook.status}", "timestamp": timestamp, "data": data}).encode()


def signed(webhook_id: str, body: bytes, secret: bytes, *, now: float) -> dict[str, str]:
    """Build the headers of a message, with its signature."""
    digest = hmac.digest(secret, b".".join([webhook_id.encode(), b"%d" % now, body]), "sha256")
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
