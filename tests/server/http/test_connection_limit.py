"""Limits of connections, in all and from one address."""

import random

from splitfuse.server.http.connection_limit import ConnectionLimit


def take(limit, address):
    """Open a connection if there may be one."""
    if (refusal := limit.refusal(address)) is None:
        limit.add(address)
    limit.check()
    return refusal


def test_one_address_gets_half():
    limit = ConnectionLimit(10)
    refusals = [take(limit, "192.0.2.1") for _ in range(8)]
    assert [refusal is None for refusal in refusals] == [True] * 5 + [False] * 3
    assert "(5, half of 10, --max-connections)" in refusals[-1]
    assert [take(limit, "2001:db8::1") for _ in range(5)] == [None] * 5
    assert "as many connections as it takes (10, --max-connections)" in take(limit, "198.51.100.1")
    assert (limit.num_open, limit.num_refused) == (10, 4)


def test_this_machine_may_have_all():
    for address in ("127.0.0.1", "127.8.8.8", "::1"):
        limit = ConnectionLimit(4)
        assert [take(limit, address) for _ in range(4)] == [None] * 4
        assert take(limit, address) is not None


def test_a_closed_connection_makes_room():
    limit = ConnectionLimit(1)
    assert take(limit, "192.0.2.1") is None
    limit.remove("192.0.2.1")
    limit.check()
    assert take(limit, "192.0.2.2") is None


def test_thousand_streams_from_one_address_fit_the_default():
    from splitfuse.server.settings import Settings

    limit = ConnectionLimit(Settings().max_connections)
    assert {take(limit, "192.0.2.1") for _ in range(1000)} == {None}


def test_counts_stay_right_in_any_order():
    rng, limit, open_ = random.Random(0), ConnectionLimit(20), []
    for _ in range(2000):
        if open_ and rng.random() < 0.5:
            limit.remove(open_.pop(rng.randrange(len(open_))))
            limit.check()
        elif take(limit, address := f"192.0.2.{rng.randrange(4)}") is None:
            open_.append(address)
        assert limit.num_open == len(open_) <= 20
