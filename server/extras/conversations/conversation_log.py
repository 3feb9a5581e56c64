"""ConversationLog: conversations in the store of files. A conversation is a log of changes, each a file of its own.

So any server on a shared database can add a change, and no change rewrites another. The files have the conversation's
id as their purpose, and /v1/files does not show them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...api.listing import Page
from ...http.errors import FileTooLargeError, ResultNotFoundError
from ...http.json_response import json_slices
from ...jobs.ids import new_id
from ..batches.settings import BatchSettings
from ..durable.batch_rows import BatchChanges, FileRow
from ..durable.memory_store import StoreUser
from ..durable.store import BatchStore, has_id_form

PURPOSE = "conversation"
ID_PREFIX = "conv_"
ROW_BYTES = 500  # a change's row beside its contents
_ALL = Page(1_000_000, ascends=True)
Change = Mapping[str, Any]


@dataclass
class Conversation:
    """State of a conversation after all of its changes."""

    root: FileRow
    metadata: Mapping[str, str] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    pending: dict[str, None] = field(default_factory=dict)  # responses whose items are not added yet
    added: set[str] = field(default_factory=set)  # responses whose items are
    rows: list[FileRow] = field(default_factory=list)

    @property
    def conversation_id(self) -> str:
        """Id of the conversation."""
        return self.root.file_id

    def apply(self, change: Change) -> None:
        """Apply a change that was written."""
        self.metadata = change.get("metadata", self.metadata)
        response_id = change.get("response")
        if response_id in self.added:
            return  # two servers have added it
        if response_id is not None and "items" in change:
            self.added.add(response_id)
            self.pending.pop(response_id, None)
        elif response_id is not None:
            self.pending[response_id] = None
        self.items += change.get("items", ())
        if (deleted := change.get("deleted")) is not None:
            self.items = [item for item in self.items if item["id"] != deleted]


class ConversationLog:
    """Conversations of all owners."""

    def __init__(self, store: StoreUser, settings: BatchSettings, *, clock: Callable[[], float]) -> None:
        """`clock` returns wall clock seconds."""
        self._store = store
        self._settings = settings
        self._clock = clock

    async def create(self, owner: str, change: Change) -> Conversation:
        """Begin a conversation. Raises FileTooLargeError, StoreUnavailableError."""
        root = self._row(new_id(ID_PREFIX, self._settings.id_tag), owner, PURPOSE, change)
        await self._write([(root, change)])
        conversation = Conversation(root)
        conversation.apply(change)
        return conversation

    async def find(self, conversation_id: str, *, owner: str) -> Conversation:
        """Read the owner's conversation. Raises ResultNotFoundError, which never gives the reason."""
        if not has_id_form(conversation_id) or not conversation_id.startswith(ID_PREFIX):
            raise ResultNotFoundError(PURPOSE)
        now = self._clock()
        found = await self._store.use(lambda store: _read(store, conversation_id, owner=owner, now=now))
        if found is None:
            raise ResultNotFoundError(PURPOSE)
        return found

    async def add(self, conversation: Conversation, change: Change) -> None:
        """Write and apply a change. Raises FileTooLargeError, StoreUnavailableError."""
        name = new_id("change_", self._settings.id_tag)
        row = self._row(name, conversation.root.owner, conversation.conversation_id, change)
        await self._write([(row, change)], aged=self._aged(conversation))
        conversation.rows.append(row)
        conversation.apply(change)

    async def delete(self, conversation: Conversation) -> None:
        """Delete a conversation with its items."""
        rows = tuple(replace(row, state="deleted") for row in (conversation.root, *conversation.rows))
        await self._store.use(lambda store: store.write_batches(BatchChanges(files=rows)))

    def _row(self, file_id: str, owner: str, purpose: str, change: Change) -> FileRow:
        now = self._clock()
        num_bytes = ROW_BYTES + len(_body(change))
        return FileRow(file_id, owner, now, now + self._settings.file_ttl, purpose, PURPOSE, num_bytes, 1)

    def _aged(self, conversation: Conversation) -> list[FileRow]:
        """Return rows that have lived half of their time, with a new end: each change renews a conversation's life."""
        end = self._clock() + self._settings.file_ttl
        soon = end - self._settings.file_ttl / 2
        return [replace(row, expires=end) for row in (conversation.root, *conversation.rows) if row.expires < soon]

    async def _write(self, changes: Sequence[tuple[FileRow, Change]], *, aged: Sequence[FileRow] = ()) -> None:
        files = (*(row for row, _ in changes), *aged)
        parts = tuple((row.file_id, 0, _body(change)) for row, change in changes)
        num_bytes, most = sum(row.num_bytes for row, _ in changes), self._settings.max_total_file_bytes

        def write(store: BatchStore) -> None:
            if store.num_file_bytes() + num_bytes > most:
                raise FileTooLargeError(
                    f"files and conversations have {most} bytes together; delete some, or raise --max-total-file-bytes"
                )
            store.write_batches(BatchChanges(files=files, parts=parts))

        await self._store.use(write)


def _body(change: Change) -> bytes:
    return b"".join(json_slices(change))


def _read(store: BatchStore, conversation_id: str, *, owner: str, now: float) -> Conversation | None:
    root = store.find_file(conversation_id)
    if root is None or root.owner != owner or root.state != "ready" or root.expires <= now:
        return None
    conversation = Conversation(root)
    conversation.rows = store.list_files(owner, _ALL, now=now, purpose=conversation_id)
    for row in (root, *conversation.rows):
        for _, body in store.parts(row.file_id, after=-1, limit=1):
            conversation.apply(json.loads(body))
    return conversation
