"""Rights of a request beyond its own results, for routes to ask for."""

from starlette.requests import HTTPConnection

from ..http.auth import CALLER, Caller
from ..http.errors import PermissionDeniedError


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the owner, and what this request may do."""
    caller = connection.scope[CALLER]
    assert isinstance(caller, Caller)
    return caller


def require_admin(connection: HTTPConnection) -> None:
    """Refuse other keys, as a dependency of routes that change the server. Raises PermissionDeniedError."""
    if not caller_of(connection).is_admin:
        raise PermissionDeniedError


def require_reader_of_sums(connection: HTTPConnection) -> None:
    """Like require_admin, but for routes that tell sums alone: without admin keys every key may read them."""
    if not caller_of(connection).may_read_sums:
        raise PermissionDeniedError
