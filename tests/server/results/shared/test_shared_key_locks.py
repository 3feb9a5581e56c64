"""Locks of idempotency keys in a database that is busy or goes away."""

from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest

from splitfuse.server.http.errors import StoreUnavailableError
from splitfuse.server.jobs.idempotency import IdempotencyKey
from splitfuse.server.results.shared import shared_backend
from splitfuse.server.results.shared.shared_backend import SharedKeyLocks

KEY = IdempotencyKey(b"digest", b"body")


def caller(store: Mock) -> Callable[[Callable[[Mock], object]], Awaitable[object]]:
    async def call(function: Callable[[Mock], object]) -> object:
        return function(store)

    return call


async def test_a_lock_that_was_not_taken_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_backend, "_RETRY_S", 0)
    store = Mock(try_lock=Mock(return_value=False))
    with pytest.raises(StoreUnavailableError, match="busy"):
        async with SharedKeyLocks(caller(store)).hold("owner", KEY):
            pass
    store.unlock.assert_not_called()


async def test_a_database_that_goes_away_hides_no_earlier_error() -> None:
    store = Mock(try_lock=Mock(return_value=True), unlock=Mock(side_effect=StoreUnavailableError("away")))
    with pytest.raises(ZeroDivisionError):
        async with SharedKeyLocks(caller(store)).hold("owner", KEY):
            raise ZeroDivisionError
    async with SharedKeyLocks(caller(store)).hold("owner", KEY):
        pass  # the session's end gives the lock back
