"""ConversationsPart: the conversations of one server, and the responses that run in them."""

import asyncio
import contextlib
import time
from contextvars import Context
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ....engine.errors import SplitfuseError
from ....engine.extras.chat.messages import Message, read_items
from ...extension import Part
from ...jobs.job import Job
from ..batches.part import BatchesPart
from ..batches.settings import BatchSettings
from ..chat.model_text import ModelText
from ..responses.input_items import input_items
from ..responses.request import stored_request
from ..responses.response import response_object
from .conversation_log import Conversation, ConversationLog

if TYPE_CHECKING:
    from ...service import Service


class ConversationsPart(Part):
    """Part with the log. The items of a response are added when the response is complete.

    A response that fails or is cancelled leaves the conversation as it was. The next reader adds the items of a
    response that another process has completed.
    """

    service: "Service"

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._running: dict[str, tuple[Job, str]] = {}  # job and conversation, by the job's id
        self._tasks: dict[asyncio.Task[None], Job] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @cached_property
    def log(self) -> ConversationLog:
        """The conversations, where files and batches are."""
        settings = self.service.settings.section(BatchSettings)
        return ConversationLog(self.service.part(BatchesPart).store, settings, clock=time.time)

    async def find(self, conversation_id: str, *, owner: str) -> Conversation:
        """Read the owner's conversation, with all responses that are complete. Raises ResultNotFoundError."""
        async with self._locks.setdefault(conversation_id, asyncio.Lock()):
            conversation = await self.log.find(conversation_id, owner=owner)
            running = [seq_id for seq_id, (_, of) in self._running.items() if of == conversation_id]
            for seq_id in dict.fromkeys((*conversation.pending, *running)):
                if (job := await self._complete_job(seq_id, owner=owner)) is not None:
                    await self.log.add(conversation, {"response": seq_id, "items": await self._items_of(job)})
                    self._running.pop(seq_id, None)
            return conversation

    async def messages(self, conversation_id: str, *, owner: str) -> list[Message]:
        """Return the conversation for a template. Raises ResultNotFoundError, InvalidRequestError."""
        items = (await self.find(conversation_id, owner=owner)).items
        return read_items(items) if items else []

    async def begin(self, job: Job, conversation_id: str) -> None:
        """Note that a response which outlives this process belongs to a conversation. Raises ResultNotFoundError."""
        conversation = await self.log.find(conversation_id, owner=job.owner)
        await self.log.add(conversation, {"response": job.seq_id})

    def follow(self, job: Job, conversation_id: str) -> None:
        """Add the items of a submitted job when it is complete."""
        self._running[job.seq_id] = job, conversation_id
        task = asyncio.create_task(self._follow(job, conversation_id), context=Context())
        self._tasks[task] = job
        task.add_done_callback(self._tasks.pop)

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Write the items of what is complete; other processes go on with the rest."""
        for task, job in self._tasks.items():
            if not job.finished:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, job: Job, conversation_id: str) -> None:
        await job.ended.wait()
        with contextlib.suppress(SplitfuseError):  # the conversation is gone, or the store
            await self.find(conversation_id, owner=job.owner)
        self._running.pop(job.seq_id, None)

    async def _complete_job(self, seq_id: str, *, owner: str) -> Job | None:
        job = self._running[seq_id][0] if seq_id in self._running else None
        with contextlib.suppress(SplitfuseError):  # it has expired, or runs on another server
            job = job or await self.service.results.find(seq_id, owner=owner)
        return job if job is not None and job.finished and job.status == "completed" else None

    async def _items_of(self, job: Job) -> list[dict[str, Any]]:
        """Return the input and the output of a response."""
        request = stored_request(job)
        assert request is not None, "only responses have conversations"
        inputs = input_items(request.messages[request.num_earlier :], response_id=job.seq_id)
        output: list[dict[str, Any]] = (await response_object(job, ModelText(self.service).shown))["output"]
        return [*inputs, *output]
