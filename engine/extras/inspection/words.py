"""Sentences of an explanation, one for each event of a history."""

from collections.abc import Callable, Mapping

from .history import Event

# Reason of a wait -> its text.
WAITS: Mapping[str, str] = {
    "step": "until the next step was decided; a step that runs is never interrupted",
    "budget": "the steps' token budget was used up by requests before it",
    "sequences": "as many requests ran as may run at once (max_num_seqs)",
    "blocks": "the KV cache had too few free blocks",
    "policy": "the batching policy admitted no request in these steps",
    "preemption": "a running request had just been preempted for lack of blocks, so no other was admitted",
    "interactive": "it is a background request, and an interactive one waited too",
    "tenant": "its tenant ran as many sequences as it may (max_seqs_per_key, or since others with less had waited)",
    "parent": "another output of the same prompt was computing the prompt that both share",
    "fairness": "another tenant has had less, so its later request went first",
    "priority": "a request with a more urgent priority went first",
    "unknown": "other requests were before it; their own reason to wait is no longer known",
}
_PAUSES: Mapping[str, str] = {
    "budget": "left out of the step: its token budget was used up",
    "policy": "left out of the step: the batching policy gave it to other requests",
}
PHASES: Mapping[str, str] = {
    "interrupted": "another process had it",
    "prefill": "its prompt was computed",
    "recompute": "computed again after a preemption",
    "decode.alone": "steps that computed no prompts",
    "decode.beside_prompts": "steps that also computed prompts",
    "decode.between_steps": "between steps, and in a step that was dropped for it",
}


def sentence(event: Event) -> str:
    """Return the reason of an event as a text."""
    return _SENTENCES[event.what](event)


def phase_text(phase: str) -> str:
    """Return the text of a phase."""
    kind, _, why = phase.partition(".")
    if phase in PHASES:
        return PHASES[phase]
    return {"queue": "waited: ", "preempted": "waited after a preemption: ", "paused": ""}[kind] + (
        _PAUSES[why] if kind == "paused" else WAITS[why]
    )


def _waits(event: Event) -> str:
    missing = f": {event.numbers[0]:.0f} more were needed" if event.numbers else ""
    return WAITS[event.why] + missing


def _admitted(event: Event) -> str:
    num_ready, num_tokens = event.numbers
    if not num_ready:
        return f"it runs from here on; all of its {num_tokens:.0f} tokens are to be computed"
    return f"it runs from here on; {num_ready:.0f} of its {num_tokens:.0f} tokens were in the cache already"


def _chunk(event: Event) -> str:
    start, num_tokens, *others = event.numbers
    text = f"tokens {start:.0f} to {start + num_tokens - 1:.0f} of it"
    if not others:  # Event.without_others
        return text
    num_others_tokens, num_others = others
    beside = f"beside {num_others:.0f} other requests with {num_others_tokens:.0f} tokens"
    return f"{text}, {beside if num_others else 'alone in its step'}"


def _preempted(event: Event) -> str:
    num_tokens, swap, recompute, *gave_way = event.numbers
    if not swap and not recompute and event.why != "swap":  # NO_CHOICE of weight_updates/live_model.py
        return f"the model's weights have changed; its {num_tokens:.0f} tokens are computed again"
    way = "its blocks were copied to the host" if event.why == "swap" else "its blocks were freed"
    known_prices = [(name, price) for name, price in (("to swap", swap), ("to recompute", recompute)) if price >= 0]
    prices = ", ".join(f"{name} {1e3 * price:.1f} ms" for name, price in known_prices)
    lacked = "requests before it needed more blocks than were free"
    lacked = "another tenant, with a smaller share, waited for its place" if gave_way else lacked
    return f"{lacked}; {way} with {num_tokens:.0f} tokens" + (f" (estimated: {prices})" if prices else "")


def _goal(event: Event) -> str:
    goal_s, *slack = event.numbers
    predicted = f"; predicted slack: {1e3 * slack[0]:.0f} ms" if slack else ""
    return f"its first token is due {1e3 * goal_s:.0f} ms after its arrival{predicted}"


_SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "goal": _goal,
    "waits": _waits,
    "admitted": _admitted,
    "chunk": _chunk,
    "paused": lambda event: _PAUSES[event.why],
    "preempted": _preempted,
}
