"""ScriptedAnswers: a grammar of one sentence for each request, in place of the request's own."""

from dataclasses import replace
from typing import Any

from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.server.extension import Part

from .script import Script


class ScriptedAnswers(Part):
    """Script of the server, with the prompts, and the steps that were said; None stands for a side request."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self.script = Script(marker="\0", steps=())
        self.places: list[int | None] = []
        self.prompts: list[str] = []
        self._submit, service.submit = service.submit, self._submit_scripted

    def begin(self, script: Script) -> None:
        """Follow another script."""
        self.script, self.places, self.prompts = script, [], []

    async def _submit_scripted(self, job: Any, prompt: Any, params: SamplingParams, **options: Any) -> None:
        if params.structured_outputs is not None:  # compiled all the same: a schema that is refused must show
            await self.service.engine.prompts.tokenize("x", replace(params, max_tokens=None), is_new=False)
        text = prompt["prompt"] if isinstance(prompt, dict) else prompt
        place = self.script.place(text)
        self.places.append(place)
        self.prompts.append(text)
        outputs = StructuredOutputs(choice=[self.script.text(place)])
        params = replace(params, structured_outputs=outputs, truncate_prompt_tokens=None)
        await self._submit(job, prompt, params, **options)
