"""RequestLog: one line per request that has ended, without text of prompts or answers, keys, or ids of results."""

import logging
from typing import Any

from ...process.log_format import LOGGER
from .request_ends import RequestRecord
from .request_figures import RequestFigures

_OWNER_CHARS = 12


class RequestLog:
    """RequestListener whose lines pass the loggers of `set_up_logging`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(LOGGER)

    def on_request_end(self, record: RequestRecord) -> None:
        """Write the line."""
        if self._logger.isEnabledFor(logging.INFO):
            fields = fields_of(record)
            self._logger.info("%s", _line(fields), extra={"fields": fields})

    def close(self) -> None:
        """Do nothing: every line is already written."""


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """Return the logged values by name, without unknown ones. Seconds are rounded to milliseconds."""
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
    # Last, because a client may write anything into it, including text that looks like other fields.
    fields["id"] = record.request_id
    return {name: value for name, value in fields.items() if value is not None}


def _line(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())
