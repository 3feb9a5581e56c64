"""The launcher on a device that delays its work at random: tokens are those of steps run one after the other."""

import random
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from overlapped_llm import compare
from simulated_stream import SimulatedStream

from splitfuse.engine.core.batch import RowOutput
from splitfuse.engine.core.planner import Planner
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.execution.runner.async_runner import AsyncRunner
from splitfuse.engine.execution.runner.forward_pass import ForwardPass
from splitfuse.engine.execution.runner.pending_outputs import Collection, PendingOutputs
from splitfuse.engine.execution.runner.transfer import TransferBuffers, layout_of, num_bytes, views
from splitfuse.engine.execution.sampling.sampler import sample
from splitfuse.kernels import ops

pytestmark = pytest.mark.sampled(2)

NUM_SEEDS = 8
MOST_SEEDS = 20
# Schedules that show what few show: they are tried first.
FIRST_SEEDS = {
    "a_forced_token_is_overlooked": 11,
    "masks_are_made_before_the_token_is_known": 4,
    "the_last_token_is_not_known": 50,
}


def test_tokens_are_those_of_plain_steps(tiny_folder: str) -> None:
    figures = [compare(tiny_folder, seed) for seed in range(NUM_SEEDS)]
    assert sum(preemptions for preemptions, _ in figures) > 10
    assert sum(launched for _, launched in figures) > 200


def host_buffer_is_written_while_the_device_reads_it(self: TransferBuffers) -> Any:
    return self._host_buffers[0]


def results_are_read_before_their_event(self: PendingOutputs) -> list[RowOutput]:
    if self.step is not None and self.step.host is not None:
        self.step.host.event = SimulatedStream(random.Random(0)).record()
    return right_wait(self)


def tokens_are_not_filled_in(self: ForwardPass, token_ids: Any, sources: Any) -> None:
    pass


def one_key_for_all_positions(logits: Any, fields: dict[str, Any], *args: Any, **more: Any) -> Any:
    if "keys" in fields and "sources" in fields:  # of a step that was launched
        fields = {**fields, "keys": fields["keys"] * 0}
    return sample(logits, fields, *args, **more)


def the_last_token_is_not_known(logits: Any, *args: Any, last_token_ids: Any, **more: Any) -> Any:
    return sample(logits, *args, last_token_ids=None if last_token_ids is None else last_token_ids * 0, **more)


def masks_are_made_before_the_token_is_known(self: AsyncRunner, step: Any) -> bool:
    pending = self._pending
    if pending and pending.step and pending.step.host:
        host = copy(pending.step.host)
        host.event = SimulatedStream(random.Random(0)).record()
        self._pending = replace(pending, step=replace(pending.step, host=host))
    return right_check(self, step)


def a_forced_token_is_overlooked(self: PendingOutputs) -> list[RowOutput]:
    outputs = right_wait(self)
    self.replaced.clear()
    return outputs


def the_copy_out_is_behind_the_event(self: Collection, step: Any, results: Any) -> None:
    self.release(step)
    self._stream.run(lambda: results.token_ids.copy_(step.sampled.token_ids))


right_wait: Callable[[PendingOutputs], list[RowOutput]] = PendingOutputs.wait
right_check: Callable[..., bool] = AsyncRunner._grammars_agree


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (TransferBuffers, "acquire", host_buffer_is_written_while_the_device_reads_it),
        (Collection, "_receive", the_copy_out_is_behind_the_event),
        (PendingOutputs, "wait", results_are_read_before_their_event),
        (ForwardPass, "_fill_in", tokens_are_not_filled_in),
        ("splitfuse.engine.execution.runner.stages", "sample", one_key_for_all_positions),
        ("splitfuse.engine.execution.runner.stages", "sample", the_last_token_is_not_known),
        (AsyncRunner, "_grammars_agree", masks_are_made_before_the_token_is_known),
        (PendingOutputs, "wait", a_forced_token_is_overlooked),
        (Scheduler, "_is_in_flight", lambda self, request: False),
        (Planner, "_depends_on_results", lambda self, room: False),
    ],
)
def test_a_planted_race_is_caught(
    tiny_folder: str, owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step whose inputs are torn writes anywhere: this backend checks its indices.
    monkeypatch.setitem(ops._BACKEND_OF_DEVICE, "cpu", "reference")
    if isinstance(owner, str):
        monkeypatch.setattr(f"{owner}.{name}", wrong)
    else:
        monkeypatch.setattr(owner, name, wrong)
    for seed in (FIRST_SEEDS.get(wrong.__name__, 0), *range(MOST_SEEDS)):
        try:
            compare(tiny_folder, seed)
        except (AssertionError, IndexError) as exc:  # a scheduler that lost blocks fails with the latter
            print(f"seed {seed}: {str(exc).splitlines()[0][:100] if str(exc) else exc!r}")
            return
    pytest.fail(f"{MOST_SEEDS} schedules do not show it")


def test_fields_keep_their_values_and_stand_at_multiples_of_16_bytes() -> None:
    arrays = {"a": np.arange(3, dtype=np.int32), "b": np.ones((2, 5), dtype=np.float32), "c": np.arange(0)}
    layout = layout_of(arrays)
    assert all(field.offset % 16 == 0 for field in layout.values())
    stream = SimulatedStream(random.Random(0), laziness=1.0)
    buffers = TransferBuffers(num_bytes(layout), 4, device=torch.device("cpu"), stream=stream)
    fields, _ = buffers.send(arrays, {})
    assert not fields["a"].any(), "the copy is queued"
    stream.synchronize()
    for name, field in fields.items():
        assert torch.equal(field, torch.from_numpy(arrays[name]))
        assert views(buffers.device_buffer, layout)[name].data_ptr() == field.data_ptr()
    with pytest.raises(AssertionError, match="there is room for"):
        buffers.send({"a": np.zeros(1000, dtype=np.int32)}, {})


def test_host_buffers_take_turns_and_wait_for_their_event() -> None:
    stream = SimulatedStream(random.Random(0), laziness=1.0)
    buffers = TransferBuffers(64, 4, device=torch.device("cpu"), stream=stream)
    first = buffers.acquire()
    stream.run(lambda: first.tokens[:2].copy_(torch.tensor([5, 6])))
    first.event = stream.record()
    second = buffers.acquire()
    assert second is not first
    assert stream.num_queued == 1
    assert buffers.acquire() is first
    assert stream.num_queued == 0, "it has waited"
    assert first.tokens[:2].tolist() == [5, 6]
