"""A crowd of bodies never holds the loop: each turn handles a bounded number of bytes."""

import asyncio

from splitfuse.server.body_turns import BYTES_PER_TURN, BodyTurns


async def handled_per_turn(sizes):
    """Return the numbers of the bodies that one turn of the loop handles, for each turn."""
    turns, bodies, handled = [], BodyTurns(), []

    async def handle(number, size):
        await bodies.wait(size)
        handled.append(number)

    async with asyncio.TaskGroup() as group:
        for number, size in enumerate(sizes):
            group.create_task(handle(number, size))
        while sum(map(len, turns)) < len(sizes):
            await asyncio.sleep(0)
            turns.append(handled.copy())
            handled.clear()
    return [turn for turn in turns if turn]


async def test_a_crowd_of_large_bodies_leaves_the_loop_between_them():
    assert await handled_per_turn([BYTES_PER_TURN] * 80) == [[number] for number in range(80)]


async def test_bodies_of_any_size_keep_their_order_and_the_budget():
    sizes = [*([100] * 70), 50 * 2**20, 30 * 2**10, 30 * 2**10, 30 * 2**10, 10]
    turns = await handled_per_turn(sizes)
    assert [number for turn in turns for number in turn] == list(range(len(sizes)))
    assert [len(turn) for turn in turns] == [32, 32, 6, 1, 2, 2]


async def test_a_wait_that_was_cancelled_takes_no_turn():
    bodies = BodyTurns()
    await bodies.wait(BYTES_PER_TURN)
    waits = [asyncio.create_task(bodies.wait(BYTES_PER_TURN)) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await waits[1]
    assert not bodies._waiting
