"""What a call may want done, as plain data: a wire performs it, a test looks at it."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from .events import StreamEvent
from .messages import Request


@dataclass(frozen=True)
class Send:
    """Send the request; the reply is the whole Answer."""

    request: Request
    timeout: float | None


@dataclass(frozen=True)
class Open:
    """Send the request and keep the connection; the reply is the Answer, without its body where the status is 200."""

    request: Request
    timeout: float | None


@dataclass(frozen=True)
class Read:
    """The next chunk of the open connection; the reply is bytes, or None at its end."""

    timeout: float | None


@dataclass(frozen=True)
class Sleep:
    """Do nothing for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Submitted:
    """Tells the stream object which request it watches."""

    seq_id: str


Action: TypeAlias = Send | Open | Read | Sleep | Submitted | StreamEvent
T = TypeVar("T")
Steps: TypeAlias = Generator[Action, Any, T]
