"""Error messages for unknown paths: an API that is not served here, or the route that was probably meant."""

from collections.abc import Iterable, Mapping

from ...engine.checks import shown

_TEXT_ONLY = "not served here: text generation only"
_NOT_POOLED = (
    "not served here: the model makes text; serve an embedding model, add one by --embedding-model NAME, or take this "
    'one\'s by --pooler-config \'{"pooling_type": "LAST"}\''
)
_TGI = "TGI's routes are gone: use /v1/chat/completions, /v1/completions, or /generate with `prompt` and `stream`"
# Prefixes of other servers' paths.
_NOT_SERVED: Mapping[str, str] = {
    "/v1/embeddings": f"embeddings are {_NOT_POOLED}",
    "/embeddings": f"embeddings are {_NOT_POOLED}",
    "/v1/images": f"images are {_TEXT_ONLY}",
    "/v1/videos": f"videos are {_TEXT_ONLY}",
    "/v1/audio": f"audio is {_TEXT_ONLY}",
    "/v1/realtime": f"audio is {_TEXT_ONLY}",
    "/v1/moderations": f"moderations are {_TEXT_ONLY}",
    "/v1/rerank": f"reranking is {_NOT_POOLED}",
    "/v2/rerank": f"reranking is {_NOT_POOLED}",
    "/rerank": f"reranking is {_NOT_POOLED}",
    **dict.fromkeys(("/v1/score", "/score"), f"scoring is {_NOT_POOLED}"),
    "/v1/classify": f"classes are {_NOT_POOLED}",
    "/classify": f"classes are {_NOT_POOLED}",
    "/v1/pooling": f"pooling is {_NOT_POOLED}",
    "/pooling": f"pooling is {_NOT_POOLED}",
    "/v1/fine_tuning": f"fine-tuning is {_TEXT_ONLY}",
    "/v1/fine-tunes": f"fine-tuning is {_TEXT_ONLY}",
    "/v1/assistants": "assistants are not served here: use /v1/responses",
    "/v1/threads": "threads are not kept here: /v1/responses takes previous_response_id",
    "/v1/vector_stores": f"vector stores are {_TEXT_ONLY}",
    "/v1/uploads": "uploads in parts are not served here: use /v1/files",
    "/v1/load_lora_adapter": "adapters are not served here: start the server with --enable-lora",
    "/inference": f"the model is {_TEXT_ONLY}, at /generate and /v1",
}
# Routes that earlier versions had, and the way to what replaces them.
_GONE: Mapping[str, str] = {
    "/": _TGI,
    "/generate_stream": _TGI,
    "/v1/responses/compact": "compaction is gone: ask the model for a summary, or send truncation auto",
    "/v1/messages/batches": "batches have one form: use /v1/batches, with /v1/messages as endpoint",
    "/v1/conversations": "conversations are not kept: send previous_response_id to /v1/responses",
    "/info": "TGI's routes are gone: GET /v1/models and /stats describe the model",
    "/stats/simulate": "policies are compared by `splitfuse simulate`, without a server",
    "/ping": "SageMaker's routes are gone: GET /ready says if the server takes requests",
    "/invocations": "SageMaker's routes are gone: use /v1/chat/completions or /v1/completions",
}


_OLLAMA = "/api/"
_NO_OLLAMA = "Ollama's API is off here: start the server without --no-ollama-api"


def gone_route(path: str) -> str | None:
    """Return the way to what replaces a route of an earlier version; None if no version had it."""
    return next((sentence for gone, sentence in _GONE.items() if f"{path}/".startswith(f"{gone}/")), None)


def missing_route(path: str, known: Iterable[str]) -> str:
    """Return a sentence about a path that has no route. `known`: the paths of all routes."""
    import difflib  # takes 3 ms, which only a refusal pays

    known = list(known)
    if path.startswith(_OLLAMA) and not any(other.startswith(_OLLAMA) for other in known):
        return _NO_OLLAMA
    for beginning, sentence in _NOT_SERVED.items():
        if path == beginning or path.startswith(beginning + "/"):
            return sentence
    path = path[:100]
    near = difflib.get_close_matches(path, known, n=1) or difflib.get_close_matches(
        "/v1" + path, known, n=1, cutoff=0.8
    )
    return f"there is nothing at {shown(path)}; " + (
        f"did you mean {near[0]}?" if near else "GET / lists what there is"
    )
