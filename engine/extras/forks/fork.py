"""Fork: another end of an output. Its first tokens are the output's own, then appended ones, then sampled ones."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...checks import check_token_ids
from ...core.outputs import KnownOutput, OutputDelta
from ...core.sampling_params import FIELD_NAMES, SamplingParams
from ...errors import InvalidRequestError
from ...execution.sampling.rng import derive_seed
from ...extension import has_extra, load_extra
from ...language.text.detokenizer import TextStream
from ...serving.request_output import CompletionOutput, RequestOutput
from ...serving.submitted_request import Resumed

if TYPE_CHECKING:
    from ...language.text.tokenizer import Tokenizer
    from ...serving.async_engine import AsyncEngine
    from ...serving.llm import LLM


# Fields that decide where a grammar begins to force a completion within max_tokens, and to which tokens.
_FORCE = ("structured_outputs", "max_tokens", "max_length", "default_max_tokens", "allowed_token_ids", "bad_words")


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Request that begins with `known` tokens, and has parameters and a seed of its own."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    seed: int
    known: tuple[int, ...]
    parent: Mapping[str, Any] | None

    @classmethod
    def of(
        cls,
        output: CompletionOutput,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        seed: int,
        *,
        seq_id: str,
        parent: Mapping[str, Any] | None,
        engine: "AsyncEngine",
        changed: SamplingParams,
        at: int | None = None,
        append_token_ids: Sequence[int] | None = None,
        append_text: str | None = None,
    ) -> "Fork":
        """Plan a fork of an output, whose request had `params` and `seed`, to `changed` parameters.

        `at`: None keeps all tokens. `parent`: the output's own, if it is a fork. Raises InvalidRequestError.
        """
        num_tokens = len(output.token_ids)
        if at is not None and not 0 <= at <= num_tokens:
            raise InvalidRequestError(f"the output has {num_tokens} tokens; at is 0 to {num_tokens}", param="at")
        if append_token_ids is not None and append_text is not None:
            raise InvalidRequestError("send append_token_ids or append_text, not both", param="append_text")
        appended = append_token_ids or []
        if append_text is not None:
            if engine.tokenizer is None:
                raise InvalidRequestError("this model has no tokenizer; append token ids", param="append_text")
            appended = engine.tokenizer.encode(append_text, add_special_tokens=False)
        check_token_ids(appended, vocab_size=engine.model_config.vocab_size, param="append_token_ids")
        known = (*output.token_ids[:at], *appended)
        changed = replace(changed, n=1, is_background=False)
        if known == tuple(output.token_ids) and changed == replace(
            params, n=1, is_background=False, wants_receipt=changed.wants_receipt
        ):
            known = known[:-1]  # its last token ends it again
        if known == tuple(output.token_ids[: len(known)]) and all(
            getattr(changed, name) == getattr(params, name) for name in _FORCE
        ):
            known = known[: output.forced_from]  # a completion is forced from its first token on
        num_kept = min(num_tokens if at is None else at, len(known))
        own = derive_seed(seed, output.index) if output.index else seed
        own_parent = None
        if has_extra("receipts"):
            fields_of = load_extra("receipts.request_fields", needed_for="fork").request_fields
            digests = {variant.name: variant.digest for variant in engine.variants}
            own_parent = {
                "seq_id": seq_id,
                "output": output.index,
                "at": num_kept,
                "num_appended": len(known) - num_kept,
                "request": fields_of(
                    replace(params, n=1), max_tokens=engine.prompts.max_tokens(len(prompt_token_ids), params)
                ),
                "seed": str(own),
                **({} if params.adapter is None else {"adapter": f"sha256:{digests[params.adapter]}"}),
                **({} if parent is None else {"parent": parent}),
            }
        return cls(
            prompt_token_ids=prompt_token_ids,
            params=changed,
            seed=own if changed.seed in (None, params.seed) else changed.seed,
            known=known,
            parent=own_parent,
        )

    @property
    def resumed(self) -> Resumed:
        """Its request, which goes on behind the known tokens."""
        return Resumed(self.seed, (KnownOutput(self.known),), time.monotonic(), is_new=True, parent=self.parent)

    def first_delta(self, request_id: str, tokenizer: "Tokenizer | None") -> OutputDelta:
        """Return the known tokens with the text that is certain after them."""
        text, params = "", self.params
        if tokenizer is not None:
            keeps = {
                "include_stop": params.include_stop_str_in_output,
                "skip_special_tokens": params.skip_special_tokens,
            }
            pieces = TextStream(tokenizer, self.prompt_token_ids, stop=params.stop, **keeps)
            text = "".join(
                pieces.push(token_id, last=False, may_stop=number > params.min_tokens)
                for number, token_id in enumerate(self.known, 1)
            )
        return OutputDelta(request_id, 0, text, self.known)


def fork(
    llm: "LLM",
    output: RequestOutput,
    *,
    index: int = 0,
    at: int | None = None,
    append_token_ids: Sequence[int] | None = None,
    append_text: str | None = None,
    **changes: Any,
) -> RequestOutput:
    """Continue an output of this LLM from its token `at` (None: from its end) and return the whole of it.

    Without a change it is the output again, bit for bit. `index`: number of the output, of several. `changes`: fields
    of SamplingParams, and keywords of `generate`. Raises InvalidRequestError.
    """
    params = output.params
    if params is None or not 0 <= index < len(output.outputs) or not output.outputs[index].finish_reason:
        raise InvalidRequestError("fork takes an output that generate, chat or fork gave, once it has ended")
    if output.weights_version != llm.weights_version:
        raise InvalidRequestError("the weights have changed since this answer")
    own = params if params.adapter is None else replace(params, adapter=params.adapter.name)
    [asked] = llm.params_for([""], None, changes)
    fields = {name: getattr(asked, name) for name in changes.keys() & FIELD_NAMES}
    keywords = {name: value for name, value in changes.items() if name not in fields}
    [changed] = llm.params_for([""], replace(own, **fields), keywords)
    planned = Fork.of(
        output.outputs[index],
        output.prompt_token_ids,
        own,
        output.seed,
        seq_id=output.request_id,
        parent=None,
        engine=llm.engine,
        changed=changed,
        at=at,
        append_token_ids=append_token_ids,
        append_text=append_text,
    )
    with llm.begin([output.prompt_token_ids], [planned.params], planned.resumed) as stream:
        [result] = stream.outputs
        stream.deltas.appendleft(planned.first_delta(result.request_id, llm.tokenizer))
        result.prompt = output.prompt
        stream.joined()
    return result
