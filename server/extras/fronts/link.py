"""Link: frames over a Unix socket between a front and the engine's process, and the records in them. No pickle.

    frame    number of JSON bytes, of words and of figures (uint32 each) | JSON | words, uint32 | figures, float64

From the engine: JSON is a list of records, words are pairs (number of an output, its next token id), and figures belong
to steps. From a front: JSON is a list of a name and its values, and words are a prompt's token ids.
"""

import asyncio
import json
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ....engine import errors
from ....engine.core.outputs import StepStats
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import SplitfuseError, UnavailableError

_HEAD = struct.Struct("<III")
_LISTS = ("num_accepted_tokens_per_pos", "ttfts", "itls")
_NUMBERS = tuple(field.name for field in fields(StepStats) if field.name not in _LISTS)
_SECONDS = ("time", "duration")
_PARAMS, _DEFAULT = tuple(field.name for field in fields(SamplingParams)), SamplingParams()

OnFrame = Callable[[Any, Sequence[int], Sequence[float]], None]


class Link(asyncio.Protocol):
    """One end of a connection. `on_frame` gets the JSON, words and figures of a frame, `on_made` and
    `on_lost` nothing."""

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[], object], on_made: Callable[[], object] = int) -> None:
        self._on_frame, self._on_lost, self._on_made = on_frame, on_lost, on_made
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._on_made()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) >= start + _HEAD.size:
            num_bytes, num_words, num_figures = _HEAD.unpack_from(self._buffer, start)
            at_words = start + _HEAD.size + num_bytes
            at_figures = at_words + 4 * num_words
            end = at_figures + 8 * num_figures
            if len(self._buffer) < end:
                break
            records = json.loads(self._buffer[start + _HEAD.size : at_words]) if num_bytes else []
            words, figures = array("I"), array("d")
            words.frombytes(self._buffer[at_words:at_figures])
            figures.frombytes(self._buffer[at_figures:end])
            start = end
            self._on_frame(records, words, figures)
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    @property
    def num_unsent(self) -> int:
        """Number of bytes that the other end has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, records: Any, words: Iterable[int] = (), figures: Iterable[float] = ()) -> None:
        """Send a frame; without a connection drop the frame."""
        if self._transport is None:
            return
        packed = json.dumps(records, default=str).encode() if records else b""
        ids, numbers = array("I", words), array("d", figures)
        head = _HEAD.pack(len(packed), len(ids), len(numbers))
        self._transport.write(b"".join((head, packed, ids.tobytes(), numbers.tobytes())))

    def close(self) -> None:
        """End the connection at once; `on_lost` is called later."""
        if self._transport is not None:
            self._transport.abort()


def pack_params(params: SamplingParams) -> dict[str, Any]:
    """Return the fields that differ from their defaults, for JSON. An adapter goes by its name."""
    values = {name: getattr(params, name) for name in _PARAMS if getattr(params, name) != getattr(_DEFAULT, name)}
    for name in values.keys() & {"structured_outputs", "reasoning_format"}:
        values[name] = asdict(values[name])
    if (adapter := values.get("adapter")) is not None:
        values["adapter"] = getattr(adapter, "name", adapter)
    return values


def read_params(values: Mapping[str, Any]) -> SamplingParams:
    """Rebuild the parameters of `pack_params`."""
    values = dict(values)
    if bias := values.get("logit_bias"):
        values["logit_bias"] = {int(token_id): number for token_id, number in bias.items()}
    if constraint := values.get("structured_outputs"):
        from ....engine.language.structured_output.params import StructuredOutputs

        values["structured_outputs"] = StructuredOutputs(**constraint)
    if form := values.get("reasoning_format"):
        from ....engine.language.chat.reasoning_parser import reasoning_format

        values["reasoning_format"] = reasoning_format(form)
    return SamplingParams(**values)


def pack_error(exc: BaseException) -> list[Any]:
    """Return an error for JSON: its class in `engine.errors`, message and attributes."""
    names = [kind.__name__ for kind in type(exc).__mro__ if getattr(errors, kind.__name__, None) is kind]
    is_known = isinstance(exc, SplitfuseError) and names[0] != "SplitfuseError"
    return [names[0], str(exc), vars(exc)] if is_known else ["UnavailableError", f"the engine failed: {exc}", {}]


def read_error(packed: Sequence[Any]) -> SplitfuseError:
    """Rebuild the error of `pack_error`."""
    name, message, attributes = packed
    kind = getattr(errors, name, UnavailableError)
    error: SplitfuseError = kind.__new__(kind, message)
    error.args = (message,)
    vars(error).update(attributes)
    return error


def pack_stats(stats: StepStats) -> list[float]:
    """Return a step's figures as numbers."""
    numbers = [getattr(stats, name) for name in _NUMBERS]
    lists = [getattr(stats, name) for name in _LISTS]
    return [*numbers, *map(len, lists), *(number for values in lists for number in values)]


def read_stats(figures: Sequence[float]) -> list[StepStats]:
    """Rebuild the steps of a frame."""
    steps, position = [], 0
    while position < len(figures):
        start = position + len(_NUMBERS)
        numbers = zip(_NUMBERS, figures[position:start], strict=True)
        values: dict[str, Any] = {name: value if name in _SECONDS else int(value) for name, value in numbers}
        position = start + len(_LISTS)
        for name, length in zip(_LISTS, figures[start:position], strict=True):
            values[name] = tuple(figures[position : position + int(length)])
            position += int(length)
        values["num_accepted_tokens_per_pos"] = tuple(map(int, values["num_accepted_tokens_per_pos"]))
        steps.append(StepStats(**values))
    return steps
