"""`splitfuse results backup`: asks a running server to copy its results file."""

from pathlib import Path

import httpx

from ...client.base import key_headers, with_scheme
from ...engine.errors import ConfigError
from ..process.runtime_file import only_server

_TIMEOUT_S = 3600.0


def back_up(file: str, *, url: str | None, api_key: str | None) -> int:
    """Copy the results of the server at the URL, or of the only one that runs here. Raises ConfigError."""
    address = f"{with_scheme(url or only_server())}/results/backup"
    body = {"path": str(Path(file).expanduser().absolute())}
    try:
        answer = httpx.post(address, json=body, headers=key_headers(api_key), timeout=_TIMEOUT_S, trust_env=False)
        fields = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise ConfigError(f"{address}: no backup was made ({exc})") from exc
    if answer.status_code != 200:
        raise ConfigError(f"no backup was made: {fields.get('error', {}).get('message', answer.status_code)}")
    print(f"{fields['path']}: {fields['bytes']:,} bytes in {fields['seconds']:g} s")
    return 0
