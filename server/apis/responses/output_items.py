"""Output of a response: items built from an answer's parts, and the events that report them while they grow."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ....engine.language.chat.answer_parts import AnswerPart

Event = dict[str, Any]
_NONE: Mapping[str, tuple[str, str]] = MappingProxyType({})


class OutputItems:
    """Items so far; the last one may still grow. Ids are derived from the response's id, so they are stable.

    Events lack their sequence numbers. Call `finish` once the answer has ended.
    """

    def __init__(
        self, response_id: str, *, customs: Collection[str] = (), namespaces: Mapping[str, tuple[str, str]] = _NONE
    ) -> None:
        self._response_id = response_id
        self._customs = customs  # names of custom tools
        self._namespaces = namespaces
        self._items: list[_Item] = []

    @property
    def items(self) -> list[dict[str, Any]]:
        """Items as the response shows them."""
        return [item.value() for item in self._items]

    def push(self, parts: Iterable[AnswerPart], *, logprobs: Sequence[Any] = ()) -> list[Event]:
        """Add parts. `logprobs` belong to the first text among them, and are dropped if there is no text."""
        events: list[Event] = []
        for part in parts:
            kind = "arguments" if part.kind == "call" else part.kind
            if not self._items or self._items[-1].kind != kind or part.kind == "call":
                events += self._close("completed") + self._begin(kind, part.text)
            if part.kind != "call":
                events.append(self._items[-1].grow(part.text, logprobs))
                logprobs = () if kind == "content" else logprobs
        return events

    def finish(self, *, status: str) -> list[Event]:
        """End the last item. An answer without parts becomes an empty message."""
        first_events = [] if self._items else self._begin("content", "")
        return first_events + self._close(status)

    def _close(self, status: str) -> list[Event]:
        return self._items[-1].close(status) if self._items else []

    def _begin(self, kind: str, name: str) -> list[Event]:
        number = len(self._items)
        digest = hashlib.sha256(f"{self._response_id} {number}".encode()).hexdigest()[:32]
        self._items.append(self._call(number, digest, name) if kind == "arguments" else _Text(number, digest, kind))
        return self._items[-1].begin()

    def _call(self, number: int, digest: str, name: str) -> "_Call":
        kind = _CustomCall if name in self._customs else _Call
        namespace, name = self._namespaces.get(name, (None, name))
        return kind(number, digest, name, namespace)


class _Item:
    """One item whose text arrives in parts."""

    kind: str

    def __init__(self, number: int, item_id: str) -> None:
        self._number = number
        self._id = item_id
        self._status = "in_progress"
        self._texts: list[str] = []

    def value(self) -> dict[str, Any]:
        """Describe the item as the response shows it."""
        raise NotImplementedError

    def begin(self) -> list[Event]:
        """Return the events that begin the item."""
        return [self._item_event("added")]

    def grow(self, text: str, logprobs: Sequence[Any]) -> Event:
        """Append text and return its event."""
        raise NotImplementedError

    def close(self, status: str) -> list[Event]:
        """Return the events that end the item."""
        self._status = status
        return [self._item_event("done")]

    def _item_event(self, change: str) -> Event:
        return {"type": f"response.output_item.{change}", "output_index": self._number, "item": self.value()}

    def _event(self, kind: str, **more: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self._id, "output_index": self._number, **more}


class _Text(_Item):
    """Message or reasoning: an item with one part of text."""

    def __init__(self, number: int, digest: str, kind: str) -> None:
        super().__init__(number, f"{'msg' if kind == 'content' else 'rs'}_{digest}")
        self.kind = kind
        self._part_kind = "output_text" if kind == "content" else "reasoning_text"
        self._logprobs: list[Any] = []
        self._has_part = False

    def value(self) -> dict[str, Any]:
        about: dict[str, Any] = {"type": "reasoning", "summary": []}
        if self.kind == "content":
            about = {"type": "message", "role": "assistant"}
        return {"id": self._id, "status": self._status, **about, "content": [self._part()] if self._has_part else []}

    def begin(self) -> list[Event]:
        events = [*super().begin(), self._part_event("content_part.added", part=self._part())]
        self._has_part = True
        return events

    def grow(self, text: str, logprobs: Sequence[Any]) -> Event:
        self._texts.append(text)
        if self.kind != "content":
            return self._part_event("reasoning_text.delta", delta=text)
        self._logprobs.extend(logprobs)
        return self._part_event("output_text.delta", delta=text, logprobs=list(logprobs))

    def close(self, status: str) -> list[Event]:
        part = self._part()
        more = {"logprobs": iter(self._logprobs)} if self.kind == "content" else {}
        return [
            self._part_event(f"{self._part_kind}.done", text=part["text"], **more),
            self._part_event("content_part.done", part=part),
            *super().close(status),
        ]

    def _part(self) -> dict[str, Any]:
        more: dict[str, Any] = {"annotations": [], "logprobs": iter(self._logprobs)} if self.kind == "content" else {}
        return {"type": self._part_kind, "text": "".join(self._texts), **more}

    def _part_event(self, kind: str, **more: Any) -> Event:
        return self._event(kind, content_index=0, **more)


class _Call(_Item):
    """Call of a function."""

    kind = "arguments"
    prefix = "fc"

    def __init__(self, number: int, digest: str, name: str, namespace: str | None) -> None:
        super().__init__(number, f"{self.prefix}_{digest}")
        self._about = {"call_id": f"call_{digest}", "name": name}
        if namespace is not None:
            self._about["namespace"] = namespace

    def value(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "function_call",
            "status": self._status,
            **self._about,
            "arguments": "".join(self._texts),
        }

    def grow(self, text: str, logprobs: Sequence[Any]) -> Event:
        self._texts.append(text)
        return self._event("function_call_arguments.delta", delta=text)

    def close(self, status: str) -> list[Event]:
        name, arguments = self._about["name"], "".join(self._texts)
        done_event = self._event("function_call_arguments.done", name=name, arguments=arguments)
        return [done_event, *super().close(status)]


class _CustomCall(_Call):
    """Call of a custom tool."""

    prefix = "ctc"

    def value(self) -> dict[str, Any]:
        about = {"id": self._id, "type": "custom_tool_call", "status": self._status, **self._about}
        return about | {"input": "".join(self._texts)}

    def grow(self, text: str, logprobs: Sequence[Any]) -> Event:
        self._texts.append(text)
        return self._event("custom_tool_call_input.delta", delta=text)

    def close(self, status: str) -> list[Event]:
        self._status = status
        done_event = self._event("custom_tool_call_input.done", input="".join(self._texts))
        return [done_event, self._item_event("done")]
