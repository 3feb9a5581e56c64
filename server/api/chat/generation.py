"""From a request's prompts and parameters to jobs, streamed or awaited.

A disconnect aborts the jobs, except a stream's that is stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.response_middleware import answer_headers, listed
from ...jobs.job import Attachment, Job
from ...jobs.signal import Signal
from ...service import Service, service_of
from ..streaming import StreamWriter, stream
from .answer_check import AnswerCheck
from .answer_format import AnswerFormat, chat_prompt, constrained, rendered
from .chat_request import Chat

if TYPE_CHECKING:
    from ....engine.serving.input_processor import Prompt


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Work of one request: one job per prompt."""

    prompts: "Sequence[Prompt]"
    params: SamplingParams
    user: str = ""
    keeps_prompt: bool = False
    check: AnswerCheck | None = None
    stored: Attachment | None = None  # kept with a stream's job, which then goes on without its reader
    in_words: Sequence[str] = ()  # tools, calls: those that the chat template does not print

    def jobs(self, service: Service, *, owner: str) -> list[Job]:
        """Create the jobs without submitting them."""
        changed = Signal()
        return [
            service.new_job(self.params, owner=owner, changed=changed, keeps_prompt=self.keeps_prompt, check=self.check)
            for _ in self.prompts
        ]

    async def complete(self, service: Service, *, owner: str, is_background: bool = False) -> list[Job]:
        """Submit the jobs and return them once all have ended. Raises like `Service.complete`."""
        jobs = self.jobs(service, owner=owner)
        await service.complete(jobs, self.prompts, self.params, user=self.user, is_background=is_background)
        return jobs

    async def answered(self, request: Request) -> list[Job]:
        """Like `complete`, for a client that waits. Raises ClientDisconnect too."""
        self._announce(request)
        work = self.complete(service_of(request), owner=owner_of(request))
        return await unless_disconnected(request.receive, work)

    async def begin(self, request: Request) -> list[Job]:
        """Submit the jobs and return them while they run. Raises like `Service.submit`, after aborting all of them."""
        self._announce(request)
        service = service_of(request)
        if self.stored is not None:
            await service.results.check_quota(owner_of(request))
        jobs = self.jobs(service, owner=owner_of(request))
        try:
            for job, prompt in zip(jobs, self.prompts, strict=True):
                if self.stored is not None:
                    job.attach(self.stored)
                    service.results.add(job)
                await service.submit(job, prompt, self.params, user=self.user)
        except BaseException:  # one of the prompts was refused
            service.abort(*jobs)
            for job in jobs if self.stored is not None else ():
                service.results.forget(job)
            raise
        return jobs

    def _announce(self, request: Request) -> None:
        """Name in X-Unenforced the keywords that will be checked once the answer is complete, and what is in words."""
        if self.in_words:
            answer_headers(request)["X-In-Words"] = listed(self.in_words)
        if self.check is not None:
            answer_headers(request)["X-Unenforced"] = self.check.header


def streamed(request: Request, jobs: Sequence[Job], writer: StreamWriter) -> Response:
    """Stream the events of jobs that `begin` submitted. The header has the id that explains the first one."""
    service = service_of(request)
    headers = {"X-Seq-Id": jobs[0].seq_id}
    owned = [job for job in jobs if job.attachment is None]
    return stream(jobs, writer, on_disconnect=lambda: service.abort(*owned), headers=headers)


def _check_beginning(chat: Chat, params: SamplingParams) -> None:
    """Refuse to begin a JSON value within one that the last message has begun: the whole would be no JSON."""
    outputs = params.structured_outputs
    is_json = outputs is not None and outputs.kind in ("json", "json_object")
    begun = str(chat.messages[-1].get("content", "")).lstrip() if chat.continue_final_message else ""
    if is_json and begun.startswith(("{", "[")):
        reason = "the last message has begun a JSON value, and the format would begin another; leave the beginning out"
        raise InvalidRequestError(reason, param="messages")


async def chat_generation(
    service: Service,
    chat: Chat,
    params: SamplingParams,
    *,
    user: str,
    keeps_prompt: bool = False,
    add_special_tokens: bool = False,
    prompt_token_ids: list[int] | None = None,
) -> tuple[Generation, AnswerFormat]:
    """Prepare an answer in a conversation, and its format. Raises like `chat_prompt` and `constrained`.

    `prompt_token_ids`: the prompt, in place of the text that the template makes.
    """
    _check_beginning(chat, params)
    text, answer = await chat_prompt(service, chat)
    prompt: Prompt = text if add_special_tokens else rendered(text)
    generation = Generation(
        prompts=[prompt if prompt_token_ids is None else prompt_token_ids],
        params=constrained(params, answer),
        user=user,
        keeps_prompt=keeps_prompt,
        check=await AnswerCheck.of(params, answer),
        in_words=answer.in_words,
    )
    return generation, answer
