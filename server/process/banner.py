"""Start banner in the terminal: the served model, the device, and a command to try."""

import dataclasses
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...engine.config.named_models import GET_SMOLLM2, SMOLLM2
from .. import package_version
from ..server_settings import ServerSettings

if TYPE_CHECKING:
    from ...engine.serving.async_engine import AsyncEngine


READY = f"splitfuse {package_version()} is ready; Ctrl-C stops it"


def banner(settings: ServerSettings, engine: "AsyncEngine", *, port: int, replica: str | None = None) -> str:
    """Build the start banner as plain text.

    A replica's banner is one line, because its supervisor prints the address.
    """
    rows = facts(settings, engine, port=port)
    if replica is not None:
        num_tokens = engine.loaded.cache.num_blocks * settings.block_size
        return f"splitfuse: replica {replica} is ready: {rows['device']}, {num_tokens} tokens of KV cache"
    return "\n".join([READY, *(f"  {name:<9} {text}" for name, text in rows.items())])


def facts(settings: ServerSettings, engine: "AsyncEngine", *, port: int) -> dict[str, str]:
    """Return the banner's rows: names of facts about a started server, and their texts."""
    loaded, config = engine.loaded, engine.config
    url = address(settings, port)
    num_tokens = loaded.cache.num_blocks * settings.block_size
    num_requests = num_tokens / loaded.max_model_len
    rows = {
        "model": settings.model_name + _description(settings, loaded.model_config.description),
        "device": f"{loaded.device}, {str(loaded.dtype).removeprefix('torch.')}",
        "KV cache": f"{loaded.cache.num_blocks} blocks = {num_tokens} tokens = "
        f"{num_requests:.3g} requests of {loaded.max_model_len}",
        **({} if loaded.states is None else {"states": str(loaded.states)}),
        "policy": f"{config.batching_policy}, {config.scheduling_policy}, "
        f"{config.max_num_batched_tokens} tokens per step",
        "sampling": _sampling(engine.default_sampling_params, engine.default_sampling_source),
        **({"page": f"{url}/"} if getattr(settings, "page", False) else {}),
        **({"network": lan} if (lan := _on_the_network(settings, port)) else {}),
        "API": f"{url}/generate  {url}/v1",
        "more": f"{url}/docs  {url}/metrics  {url}/stats",
        "try": curl(settings, url),
    }
    if settings.tensor_parallel_size > 1:
        rows["device"] += f", {settings.tensor_parallel_size} {'GPUs' if loaded.device.type == 'cuda' else 'processes'}"
    if loaded.model_config.quantization is not None:
        rows["device"] += f", weights {loaded.model_config.quantization.name}"
    if loaded.op_by_op is not None:
        rows["device"] += f", op by op ({loaded.op_by_op})"
    rows["bits"] = "exact: no schedule changes an answer" if loaded.inexact is None else f"inexact: {loaded.inexact}"
    return rows


def _description(settings: ServerSettings, of_files: str) -> str:
    if settings.is_demo:
        return f" (the bundled demo, a toy; name a model to serve your own, or get {SMOLLM2}: {GET_SMOLLM2})"
    return f" ({of_files})" if of_files else ""


def _sampling(defaults: Mapping[str, Any], source: str) -> str:
    """Show the model's sampling values in one row. `source`: empty if the model's own file states them."""
    values = ", ".join(f"{name} {value}" for name, value in defaults.items())
    return f"{values} where a request has none{f' ({source})' if source else ''}"


def curl(settings: ServerSettings, url: str) -> str:
    """Return a one-line command that shows a streamed answer."""
    key = ' -H "Authorization: Bearer $SPLITFUSE_API_KEY"' if settings.keys else ""
    socket = f" --unix-socket {settings.uds}" if settings.uds else ""
    return f'curl -N{socket} {url}/generate{key} -d \'{{"prompt": "Once upon a time", "stream": true}}\''


def address(settings: ServerSettings, port: int) -> str:
    """Return the server's URL on this machine."""
    place = "localhost" if settings.uds is not None else f"{reachable(settings.host)}:{port}"
    return f"http{'s' * (settings.ssl_certfile is not None)}://{place}{settings.root_path}"


def _on_the_network(settings: ServerSettings, port: int) -> str:
    """Return the URL for other machines, and what a name needs; empty unless all addresses are listened on."""
    if settings.host not in ("0.0.0.0", "::", "") or settings.uds is not None:
        return ""
    family, nowhere = (socket.AF_INET6, "2001:db8::1") if settings.host == "::" else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((nowhere, 9))  # sends nothing
            here = dataclasses.replace(settings, host=probe.getsockname()[0])
    except OSError:
        return ""
    return address(here, port) + ("" if settings.keys else "; by a name other than .local: --allowed-hosts NAME")


def reachable(host: str) -> str:
    """Return the host as written in a URL on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
