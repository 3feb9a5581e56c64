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

from ....engine.errors import UnavailableError
from ...jobs.webhook_targets import WebhookTargets
from .records import Webhook

_log = logging.getLogger("splitfuse.webhooks")
_POLL_S = 1.0
_AT_ONCE = 16
_TIMEOUT_S = 10.0
BACKOFFS_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 4 * 3600.0, 16 * 3600.0)  # after each try; the eighth is the last
Use = Callable[[Callable[[Any], Any]], Awaitable[Any]]


class Webhooks:
    """Sender of due messages. `use` runs a function with the store; `clock` returns wall clock seconds."""

    def __init__(self, targets: WebhookTargets, use: Use, *, clock: Callable[[], float]) -> None:
        self._targets = targets
        self._use = use
        self._clock = clock

    async def run(self) -> None:
        """Send due messages forever."""
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False) as client:
            while True:
                try:
                    await self.send_due(client)
                except UnavailableError as exc:  # the store is unavailable
                    _log.info("webhooks: not sent now: %s", exc)
                except Exception:
                    _log.exception("webhooks: not sent now")
                await asyncio.sleep(_POLL_S)

    async def send_due(self, client: httpx.AsyncClient) -> None:
        """Try each due message once. Raises StoreUnavailableError."""
        now = self._clock()
        due: list[Webhook] = await self._use(lambda store: store.due_webhooks(now, limit=_AT_ONCE))
        await asyncio.gather(*(self._try(client, webhook, now) for webhook in due))

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
            return (await client.post(url, content=body, headers=headers)).status_code
        except httpx.HTTPError:
            return None


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
