"""`splitfuse verify`: checks an answer's receipt, with a model in this process or at a running server."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...engine.errors import ConfigError
from ..server_settings import ServerSettings

Receipt = Mapping[str, Any]
Verdict = dict[str, Any]
_URL_TIMEOUT_S = 600.0


def read_receipt(name: str) -> Receipt:
    """Read the receipt of a JSON file, which may hold the whole answer; "-" is standard input. Raises ConfigError."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as exc:
        raise ConfigError(f"{name}: cannot be read ({exc.strerror})") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{name} is not JSON ({exc}); save the answer's receipt as it came") from exc
    receipt = value.get("receipt", value) if isinstance(value, dict) else value
    if not isinstance(receipt, dict):
        raise ConfigError(f'{name} holds no receipt, which an answer to a request with "receipt": true has')
    return receipt


def verify(settings: ServerSettings, receipt: Receipt) -> Verdict:
    """Check a receipt with an engine in this process. Raises ConfigError, InvalidRequestError."""
    from ...engine.extension import load_extra
    from ...engine.serving.async_engine import AsyncEngine

    of_extra = load_extra("receipts.verification", needed_for="verify")
    read = of_extra.Receipt.read(receipt)  # refused before the model is loaded

    async def check() -> Verdict:
        engine = AsyncEngine(settings.engine_config())
        await engine.start()
        try:
            identity = await asyncio.to_thread(of_extra.Identity.of, engine)
            verdict: Verdict = (await of_extra.verify(engine, read, identity)).to_dict()
            return verdict
        finally:
            await engine.stop()

    return asyncio.run(check())


def verify_at(url: str, receipt: Receipt, *, api_key: str | None) -> Verdict:
    """Like `verify`, but at a running server. Raises ConfigError."""
    from dataclasses import asdict

    from ...client import APIError, Client

    with Client(url.rstrip("/").removesuffix("/v1"), api_key, timeout=_URL_TIMEOUT_S) as client:
        try:
            return asdict(client.verify(receipt))
        except APIError as exc:
            raise ConfigError(f"{url}: {exc}") from exc


def show(verdict: Verdict, receipt: Receipt, *, as_json: bool) -> int:
    """Print the verdict. The exit code is 0 for a valid receipt, else 1."""
    if as_json:
        print(json.dumps(verdict))
    elif verdict["valid"]:
        num_tokens = sum(len(output["token_ids"]) for output in receipt["outputs"])
        print(f"valid: all {num_tokens} tokens follow")
    else:
        print(f"not valid: {verdict['reason']}")
    return 0 if verdict["valid"] else 1
