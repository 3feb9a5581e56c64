"""`splitfuse results backup`: asks a running server to copy its results file."""

from pathlib import Path
from typing import Any

import httpx

from ...client.base import key_headers, with_scheme
from ...engine.errors import ConfigError
from ..process.runtime_file import only_server

_TIMEOUT_S = 3600.0


def back_up(file: str, *, url: str | None, api_key: str | None) -> int:
    """Copy the results of the server at the URL, or of the only one that runs here. Raises ConfigError."""
    body = {"path": str(Path(file).expanduser().absolute())}
    fields = posted("/results/backup", body, url=url, api_key=api_key, failure="no backup was made")
    print(f"{fields['path']}: {fields['bytes']:,} bytes in {fields['seconds']:g} s")
    return 0


def posted(path: str, body: dict[str, str], *, url: str | None, api_key: str | None, failure: str) -> dict[str, Any]:
    """Return the answer of the server at the URL, or of the only one that runs here. Raises ConfigError."""
    address = f"{with_scheme(url or only_server())}{path}"
    try:
        answer = httpx.post(address, json=body, headers=key_headers(api_key), timeout=_TIMEOUT_S, trust_env=False)
        fields: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise ConfigError(f"{address}: {failure} ({exc})") from exc
    if answer.status_code != 200:
        raise ConfigError(f"{failure}: {fields.get('error', {}).get('message', answer.status_code)}")
    return fields
