"""The launcher on a device that does its work when it likes: tokens are those of steps run one after the other."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from overlapped_llm import compare
from simulated_stream import SimulatedStream

from splitfuse.engine.batch import RunResult
from splitfuse.engine.device_sampler import draw
from splitfuse.engine.launcher import DeviceLauncher, PendingTokens
from splitfuse.engine.overlap import OverlappedScheduler
from splitfuse.engine.scheduler import Scheduler
from splitfuse.engine.staging import Staging, layout_of, num_bytes, views

NUM_SEEDS = 8
MOST_SEEDS = 20


def test_tokens_are_those_of_plain_steps(tiny_folder: str) -> None:
    figures = [compare(tiny_folder, seed) for seed in range(NUM_SEEDS)]
    assert sum(preemptions for preemptions, _ in figures) > 10
    assert sum(launched for _, launched in figures) > 200


def slot_is_written_while_the_device_reads_it(self: Staging) -> Any:
    return self._slots[0]


def results_are_read_before_their_event(self: PendingTokens) -> list[RunResult]:
    return right_wait(PendingTokens(self.slot, SimulatedStream(random.Random(0)).record(), self.samples))


def tokens_are_not_filled_in(self: DeviceLauncher, token_ids: Any, sources: Any) -> None:
    pass


def one_key_for_all_positions(logits: Any, fields: dict[str, Any]) -> Any:
    return draw(logits, {**fields, "keys": fields["keys"] * 0} if "keys" in fields else fields)


def the_copy_out_is_behind_the_event(self: Staging, slot: Any, tokens: Any) -> None:
    slot.event = self._stream.record()
    self._stream.run(lambda: slot.tokens[: len(tokens)].copy_(tokens))


right_wait: Callable[[PendingTokens], list[RunResult]] = PendingTokens.wait


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Staging, "take", slot_is_written_while_the_device_reads_it),
        (Staging, "receive", the_copy_out_is_behind_the_event),
        (PendingTokens, "wait", results_are_read_before_their_event),
        (DeviceLauncher, "_fill_in", tokens_are_not_filled_in),
        ("splitfuse.engine.launcher", "draw", one_key_for_all_positions),
        (OverlappedScheduler, "_let_go", Scheduler._let_go),
        (OverlappedScheduler, "_plan", Scheduler._plan),
    ],
)
def test_a_planted_race_is_caught(
    tiny_folder: str, owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(owner, str):
        monkeypatch.setattr(f"{owner}.{name}", wrong)
    else:
        monkeypatch.setattr(owner, name, wrong)
    for seed in range(MOST_SEEDS):
        try:
            compare(tiny_folder, seed)
        except AssertionError as exc:
            print(f"{seed + 1} seeds: {str(exc).splitlines()[0][:100] if str(exc) else exc!r}")
            return
    pytest.fail(f"{MOST_SEEDS} schedules do not show it")


def test_fields_keep_their_values_and_stand_at_multiples_of_16_bytes() -> None:
    arrays = {"a": np.arange(3, dtype=np.int32), "b": np.ones((2, 5), dtype=np.float32), "c": np.arange(0)}
    layout = layout_of(arrays)
    assert all(field.offset % 16 == 0 for field in layout.values())
    stream = SimulatedStream(random.Random(0), laziness=1.0)
    staging = Staging(num_bytes(layout), 4, device=torch.device("cpu"), stream=stream)
    fields = staging.send(staging.take(), arrays)
    assert not fields["a"].any(), "the copy is queued"
    stream.synchronize()
    for name, field in fields.items():
        assert torch.equal(field, torch.from_numpy(arrays[name]))
        assert views(staging.buffer, layout)[name].data_ptr() == field.data_ptr()
    with pytest.raises(AssertionError, match="there is room for"):
        staging.send(staging.take(), {"a": np.zeros(1000, dtype=np.int32)})


def test_slots_take_turns_and_wait_for_their_event() -> None:
    stream = SimulatedStream(random.Random(0), laziness=1.0)
    staging = Staging(64, 4, device=torch.device("cpu"), stream=stream)
    first = staging.take()
    staging.receive(first, torch.tensor([5, 6]))
    second = staging.take()
    assert second is not first
    assert stream.num_queued == 1
    assert staging.take() is first
    assert stream.num_queued == 0, "it has waited"
    assert first.tokens[:2].tolist() == [5, 6]
