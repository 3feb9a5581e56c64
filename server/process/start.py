"""Start of the server process, before its slow imports: limits, log, port, warnings, and word of a build."""

import contextlib
import errno
import faulthandler
import logging
import os
import socket
import sys
from pathlib import Path

from ...engine.errors import ConfigError
from ...engine.execution.build_announcement import announce_build
from ...engine.formats.checkpoint import local_model
from ...engine.formats.gguf_files import parts_of
from ..server_settings import ServerSettings
from .file_limits import raise_file_limit, rate_limit_emfile_log
from .log_format import as_line, set_up_logging
from .log_limit import limit_request_log
from .stop_signals import StopSignals

PORTS_TRIED = 50
QUICK_BYTES = 150e6  # they take 2 s, most of it imports
MIN_KEY_CHARS = 16  # 96 bits in base64


def serve(settings: ServerSettings, signals: StopSignals, *, replica: str | None = None) -> None:
    """Serve until one of the signals. `replica` is the name of a server that is one of several behind one port.

    Raises ConfigError if the port is taken or the model cannot be loaded, EngineDiedError or RankLostError if the
    engine died.
    """
    listener = open_port(settings)
    announce_build(settings.device, settings.model)
    say_loading(settings)
    from .process import run  # the web framework takes 0.5 s

    run(settings, signals, listener, replica=replica)


def open_port(settings: ServerSettings) -> socket.socket:
    """Set the process's limits and its log, and listen, with warnings of who may use the port. Raises ConfigError."""
    if not faulthandler.is_enabled():
        faulthandler.enable(file=sys.stderr.fileno())  # a crash in native code leaves its stacks
    raise_file_limit()
    rate_limit_emfile_log()
    limit_request_log()
    set_up_logging(settings.log_format)
    _check_certificate(settings)
    local_model(settings.model)  # a missing model is named before a taken port
    listener = listen(settings.host, settings.port) if settings.uds is None else listen_at(Path(settings.uds))
    if not settings.keys and not settings.is_local and settings.uds is None:
        _warn(
            f"listening on {settings.host} without an API key; all who reach port {listener.getsockname()[1]} can use "
            "the model: set SPLITFUSE_API_KEY"
        )
    _warn_of_keys(settings)
    return listener


def _warn_of_keys(settings: ServerSettings) -> None:
    """Warn of keys that others can read, or guess: wrong keys are refused without a limit or a delay."""
    for path in filter(None, (settings.api_key_file, settings.admin_key_file)):
        from ...engine.private_file import others_with_access

        if others := others_with_access(Path(path)):
            _warn(f"{others} can read the keys in {path}: chmod 600 {path}")
    if any(len(key) < MIN_KEY_CHARS for key in (*settings.keys, *settings.admin_keys)):
        text = "an API key or admin key is shorter than"
        _warn(f"{text} {MIN_KEY_CHARS} characters, and so can be guessed: openssl rand -base64 24 makes a good one")


def say_loading(settings: ServerSettings) -> None:
    """Say what loads, if that takes more than a moment. Raises ConfigError if the model is not there."""
    path = local_model(settings.model)
    files = [] if path is None else parts_of(path) if path.is_file() else path.glob("*.safetensors")
    if (num_bytes := sum(file.stat().st_size for file in files)) > QUICK_BYTES:
        print(
            as_line(f"splitfuse: loading {settings.model_name} ({num_bytes / 1e6:,.0f} MB)"),
            file=sys.stderr,
            flush=True,
        )


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. If the port is taken, raise ConfigError with a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=1024)
    except socket.gaierror as exc:
        raise ConfigError(f"--host {host}: no such address on this machine ({exc.strerror})") from exc
    except OSError as exc:
        if exc.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host {host}: no such address on this machine; 0.0.0.0 stands for all it has") from exc
        free = _free_port(host, port)
        hint = f"; port {free} is free: --port {free}" if free else ""
        raise ConfigError(f"cannot listen on {host} port {port}: {os.strerror(exc.errno or 0)}{hint}") from exc
    # asyncio sets this only on sockets that it creates. Without it, a kept connection's answer, written in two parts,
    # waits for the client's delayed acknowledgement: 44 ms instead of 2.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def listen_at(path: Path) -> socket.socket:
    """Open a Unix socket that this user and the group may use. Raises ConfigError if another server has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():  # a dead server leaves its socket
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise ConfigError(f"--uds {path}: another server listens on it")
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(1024)
    except OSError as exc:
        raise ConfigError(f"--uds {path}: cannot listen on it ({exc.strerror or exc})") from exc
    return listener


def _check_certificate(settings: ServerSettings) -> None:
    if settings.ssl_certfile is None:
        return
    import ssl

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.ssl_certfile, settings.ssl_keyfile, password=""
        )
    except (OSError, ValueError) as exc:
        files = " with --ssl-keyfile ".join(filter(None, (settings.ssl_certfile, settings.ssl_keyfile)))
        raise ConfigError(f"--ssl-certfile {files}: no certificate with its key in PEM ({exc})") from exc


def _warn(text: str) -> None:
    print(as_line(f"splitfuse: warning: {text}", level=logging.WARNING), file=sys.stderr)


def _free_port(host: str, port: int) -> int | None:
    """Find the next free port."""
    for candidate in range(port + 1, min(port + PORTS_TRIED, 65536)):
        with contextlib.suppress(OSError), socket.create_server((host, candidate)):
            return candidate
    return None
