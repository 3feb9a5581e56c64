"""Supervisor of `serve A B C`: holds the port and the router, and drains the models' servers on a signal."""

import asyncio
import contextlib
import dataclasses
import socket
import sqlite3
import sys
from pathlib import Path

from ... import package_version
from ...process.banner import address, curl, reachable
from ...process.exit import END_S
from ...process.http_server import HttpServer
from ...process.log_format import as_line
from ...process.runtime_file import announced
from ...process.start import open_port
from ...process.stop_signals import StopSignals
from ...process.temporary_folder import temporary_folder
from . import RouterSettings
from .app import build_app
from .catalog import Catalog, Entry
from .router import Router
from .turns import ModelTurn, Turns

_OWN_END_S = 5.0  # after the last model's server
_UNFINISHED = (
    "SELECT (SELECT count(*) FROM jobs WHERE status IS NULL) + (SELECT count(*) FROM batches WHERE NOT is_over)"
)


def serve_models(settings: RouterSettings, signals: StopSignals) -> None:
    """Serve until one of the signals. Raises ConfigError."""
    with temporary_folder() as folder:
        catalog = Catalog(settings, folder)
        for entry in catalog:
            entry.results.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener = open_port(settings)
        port = 0 if settings.uds is not None else int(listener.getsockname()[1])
        scheme = "http" if settings.ssl_certfile is None else "https"
        names = ", ".join(catalog.entries)
        place = {"host": reachable(settings.host), "port": port, "scheme": scheme, "uds": settings.uds}
        with listener, announced(model=names, **place):  # type: ignore[arg-type]
            asyncio.run(_serve(dataclasses.replace(settings, port=port), catalog, listener, signals, folder))


async def _serve(
    settings: RouterSettings, catalog: Catalog, listener: socket.socket, signals: StopSignals, folder: Path
) -> None:
    """Run until a signal has come and the models' servers have drained."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    models = [ModelTurn(entry.name, entry.is_pinned, settings.idle_unload) for entry in catalog]
    turns = Turns(models, max_resident=settings.models_max, turn_s=settings.model_turn)
    router = Router(catalog, folder, settings, turns)
    certificate = {"ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile}
    server = HttpServer(build_app(router, settings), **certificate)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.is_up.wait()
        limit_s = settings.drain_timeout + END_S + _OWN_END_S
        signals.on_stop(lambda: loop.call_soon_threadsafe(stop.set), limit_s=limit_s)
        for entry in catalog:
            if entry.is_pinned or has_unfinished(entry):
                router.want(entry.name)
        print(as_line(_banner(settings, catalog)), flush=True)
        await stop.wait()
        text = f"the models finish their requests, at most {settings.drain_timeout:g} s; a second signal ends at once"
        print(as_line(f"splitfuse: {text}"), file=sys.stderr, flush=True)
        await router.drain()
    finally:
        server.should_exit = True
        await serving


def has_unfinished(entry: Entry) -> bool:
    """True if an earlier process has left accepted work to the model, or may have."""
    if not entry.results.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{entry.results.absolute().as_uri()}?mode=ro", uri=True)) as file:
            return bool(file.execute(_UNFINISHED).fetchone()[0])
    except sqlite3.Error:
        return True  # its server says what is wrong with the file


def _banner(settings: RouterSettings, catalog: Catalog) -> str:
    url = address(settings, settings.port)
    rest = f"; each leaves after {settings.idle_unload:g} s without work" if settings.idle_unload is not None else ""
    rows = {
        "models": ", ".join(catalog.entries),
        "memory": f"{settings.models_max} at once, loaded by the first request{rest}",
        "API": f"{url}/v1  {url}/v1/models",
        "try": curl(settings, url),
    }
    lines = [f"splitfuse {package_version()} is ready; Ctrl-C stops it"]
    return "\n".join(lines + [f"  {name:<9} {text}" for name, text in rows.items()])
