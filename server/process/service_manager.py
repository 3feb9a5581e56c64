"""Words to systemd, for units of Type=notify: the server is ready, or ends."""

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state such as READY=1 to the socket that NOTIFY_SOCKET names, if it names one."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    address = f"\0{name[1:]}" if name.startswith("@") else name  # @: a name that is no file
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
