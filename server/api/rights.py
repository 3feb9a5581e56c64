"""Rights of a request beyond its own results, for routes to ask for."""

from starlette.requests import HTTPConnection

from ..http.auth import CALLER, Caller
from ..http.errors import PermissionDeniedError
from ..service import service_of


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


def require_changing_admin(connection: HTTPConnection) -> None:
    """Refuse other keys, and everybody on a server without keys that other machines reach."""
    require_admin(connection)
    service = service_of(connection)
    if not service.keys and not service.settings.admin_keys and not service.settings.is_local:
        raise PermissionDeniedError
