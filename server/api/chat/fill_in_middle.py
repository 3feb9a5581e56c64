"""Text between a prefix and a suffix, for models whose tokenizer has tokens for it (FIM)."""

from collections.abc import Sequence
from typing import NamedTuple

from ....engine.errors import InvalidRequestError
from ...service import Service
from .model_text import ModelText

# Tokens before the prefix, before the suffix and before the middle.
FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder2, Granite
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)
# Tokens before a repository's name and before a file's.
REPOSITORIES = (("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>"))
# Tokens that end the middle, beside FORMS' tokens and the model's own end.
ENDS = (
    *("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<fim_pad>", "<file_sep>", "<repo_name>"),
    *("▁<EOT>", "<|EOT|>"),
)


class FillIn(NamedTuple):
    """Prompt of a text to fill in, and the tokens that end the text."""

    token_ids: list[int]
    stop_token_ids: list[int]


async def fill_in(
    service: Service, prefix: str, suffix: str, *, param: str, after: str = "", files: Sequence[tuple[str, str]] = ()
) -> FillIn:
    """Put a prefix and a suffix into the model's form; the answer begins with `after`. Raises InvalidRequestError.

    `files`: names and texts that the model reads first, in the form that llama.cpp's server documents.
    """
    marks = next((ids for form in FORMS if len(ids := _ids(service, form)) == len(form)), None)
    if marks is None:
        tokens = ", ".join(FORMS[0])
        raise InvalidRequestError(
            f"{param} needs a model with tokens for the middle of a text, such as {tokens}; this tokenizer has none",
            param=param,
        )
    text = ModelText(service)
    before, middle, end = marks
    token_ids = await text.encode("")  # what the tokenizer puts before every text
    parts = [*_repository(service, files), (before, prefix), (middle, suffix), (end, after)]
    for mark, part in parts:
        token_ids += [] if mark is None else [mark]
        token_ids += await text.encode(part, add_special_tokens=False) if part else []
    return FillIn(token_ids, sorted({*marks, *_ids(service, ENDS)}))


def _repository(service: Service, files: Sequence[tuple[str, str]]) -> list[tuple[int | None, str]]:
    """Return the parts before the prefix: a token or none, and the text behind it."""
    if not files:
        return []
    marks = next((ids for form in REPOSITORIES if len(ids := _ids(service, form)) == len(form)), None)
    if marks is None:
        return [(None, text) for _, text in files]
    repository, file = marks
    return [(repository, "myproject\n"), *((file, f"{name}\n{text}\n") for name, text in files), (file, "filename\n")]


def _ids(service: Service, texts: Sequence[str]) -> list[int]:
    """Return the ids of the texts that are one token each."""
    found = (service.tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return [ids[0] for ids in found if len(ids) == 1]
