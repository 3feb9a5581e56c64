"""`splitfuse fork`: continues an answer of a running server from one of its tokens, and says where the two part."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ...client import APIError, Client
from ...engine.errors import ConfigError
from ..process.runtime_file import only_server

_TIMEOUT_S = 600.0


def run(seq_id: str, *, url: str | None, api_key: str | None, as_json: bool, output: int, **changes: Any) -> int:
    """Print the fork and its first other token. `changes`: fields of POST /fork; None if absent."""
    address = (url or only_server()).rstrip("/").removesuffix("/v1")
    given = {name: value for name, value in changes.items() if value is not None}
    with Client(address, api_key, timeout=_TIMEOUT_S) as client:
        try:
            fork = client.fork(seq_id, output=output, **given).result()
            if fork.error is not None:
                raise ConfigError(f"the fork {fork.seq_id} failed: {fork.error.message}")
            was, now = client.tokens(seq_id, output=output, top=0), client.tokens(fork.seq_id, top=0)
        except APIError as exc:
            raise ConfigError(f"{address}: {exc}") from exc
    pairs = enumerate(zip_longest(was, now))
    num_equal = next((place for place, (a, b) in pairs if not a or not b or a["token_id"] != b["token_id"]), len(now))
    if as_json:
        other = {"was": was[num_equal:][:1], "now": now[num_equal:][:1]}
        print(json.dumps({"seq_id": fork.seq_id, "parent": seq_id, "num_equal": num_equal, **other, "text": fork.text}))
        return 0
    print(f"{fork.text}\n\n{fork.seq_id}: {num_equal} of its {len(now)} tokens are those of {seq_id}")
    if (num_equal, num_equal) != (len(was), len(now)):
        print(f"token {num_equal} was {_text(was[num_equal:])} and is {_text(now[num_equal:])}")
    return 0


def _text(tokens: Sequence[Mapping[str, Any]]) -> str:
    if not tokens:
        return "the end"
    return "{text!r} (number {rank} in the model's order, log-probability {logprob:.2f})".format_map(tokens[0])
