"""`splitfuse agents`: prints the settings that let a coding agent use a running server, from agents.json."""

import json
from importlib.resources import files

import httpx

from ...client.base import key_headers, with_scheme
from ...engine.errors import ConfigError
from ..process.runtime_file import only_server

_TIMEOUT_S = 10.0


def show(name: str | None, *, url: str | None, api_key: str | None) -> int:
    """Print an agent's settings for the server at the URL, or for the only one here; without a name the agents.

    Raises ConfigError.
    """
    agents: dict[str, list[str]] = json.loads(files(__package__).joinpath("agents.json").read_text("utf-8"))
    if name is None:
        print("\n".join(agents))
        return 0
    if name not in agents:
        raise ConfigError(f"no settings of {name!r} are known; those of others are: {', '.join(agents)}")
    address = with_scheme(url or only_server()).rstrip("/")
    try:
        answer = httpx.get(f"{address}/v1/models", headers=key_headers(api_key), timeout=_TIMEOUT_S, trust_env=False)
        served = answer.raise_for_status().json()["data"][0]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError) as exc:
        raise ConfigError(f"{address} names no model ({exc}); start one: splitfuse serve MODEL") from exc
    key = api_key or ("YOUR_KEY" if key_headers(None) else "none")  # a key of the environment is not shown
    text = "\n".join(agents[name])
    for word, value in {"url": address, "model": served["id"], "context": served["max_model_len"], "key": key}.items():
        text = text.replace(f"{{{word}}}", str(value))
    print(text)
    return 0
