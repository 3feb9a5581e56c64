"""RequestLog: one line per request when it has ended. Nothing of prompts, answers, keys or ids of results."""

import logging
from typing import Any

from ...process.log_format import LOGGER
from .request_ends import RequestRecord
from .request_figures import RequestFigures

_OWNER_CHARS = 12


class RequestLog:
    """A RequestListener whose lines `set_up_logging` lets through."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(LOGGER)

    def on_request_end(self, record: RequestRecord) -> None:
        """Write the line."""
        if self._logger.isEnabledFor(logging.INFO):
            fields = fields_of(record)
            self._logger.info("%s", _line(fields), extra={"fields": fields})

    def close(self) -> None:
        """Nothing is left to do."""


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """What is logged, by name; what is not known is left out. Seconds, to the millisecond."""
    figures = RequestFigures.of(record)
    fields: dict[str, Any] = {
        "route": record.route,
        "status": record.status,
        "finish_reason": ",".join(figures.finish_reasons) or None,
        "total_s": round(figures.total_s, 3),
        "tenant": record.owner[:_OWNER_CHARS] or None,
    }
    if record.jobs:
        fields |= {
            "prompt_tokens": figures.num_prompt_tokens,
            "cached_tokens": figures.num_cached_tokens,
            "output_tokens": figures.num_output_tokens,
            "queue_s": None if figures.queue_s is None else round(figures.queue_s, 3),
            "ttft_s": None if figures.ttft_s is None else round(figures.ttft_s, 3),
        }
    # The last one: a client may have put anything into it, what looks like other fields too.
    fields["id"] = record.request_id
    return {name: value for name, value in fields.items() if value is not None}


def _line(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())
