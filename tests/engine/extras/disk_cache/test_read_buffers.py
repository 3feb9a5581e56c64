"""A buffer is in nobody's use when it is handed out, and touching changes none."""

import numpy as np

from splitfuse.engine.extras.disk_cache.read_buffers import ReadBuffers, touch


def address(view: memoryview) -> int:
    return np.frombuffer(view, dtype=np.uint8).ctypes.data


def test_a_buffer_is_free_again_when_nothing_refers_to_it() -> None:
    pool = ReadBuffers(100, max_bytes=250)
    first, second, other = (pool.take(size) for size in (100, 60, 100))
    assert [len(view) for view in (first, second, other)] == [100, 60, 100]
    assert address(second) - address(first) == 100
    assert address(other) - address(first) not in range(-100, 250)
    place, payload = address(first), np.frombuffer(first[48:], dtype=np.uint8)
    del first
    assert address(pool.take(100)) not in range(place - 99, place + 100)
    del payload
    assert address(pool.take(100)) == place


def test_what_is_larger_or_of_no_size_has_memory_of_its_own() -> None:
    assert len(ReadBuffers(100, max_bytes=250).take(101)) == 101
    assert len(ReadBuffers(0, max_bytes=250).take(300)) == 300


def test_touching_changes_no_byte() -> None:
    values = np.arange(20_000, dtype=np.uint8)
    pool = ReadBuffers(1000, max_bytes=10_000)
    buffer = pool.take(1000)
    buffer[:] = bytes(range(250)) * 4
    touch(values[100:9_000])
    pool.touch()
    assert (values == np.arange(20_000, dtype=np.uint8)).all()
    assert bytes(buffer) == bytes(range(250)) * 4
