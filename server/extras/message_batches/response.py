"""Batches of messages and their results in Anthropic's form."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from ...apis.anthropic.errors import envelope
from ...http.errors import Problem
from ...http.json_response import dumps
from ...results.batches.batch import Batch
from ...results.batches.files import Files

_UNANSWERED = {"batch_expired": "expired", "batch_cancelled": "canceled"}


def batch_object(batch: Batch) -> dict[str, Any]:
    """Describe a batch as it is now. Its results are counted once it has ended."""
    end = _time(batch.times[batch.status]) if batch.is_over else None
    status = "canceling" if batch.status == "cancelling" else "in_progress"
    return {
        "id": batch.batch_id,
        "type": "message_batch",
        "processing_status": "ended" if batch.is_over else status,
        "request_counts": _counts(batch),
        "created_at": _time(batch.created),
        "expires_at": _time(batch.deadline),
        "ended_at": end,
        "archived_at": None,
        "cancel_initiated_at": _time(batch.times["cancelling"]) if "cancelling" in batch.times else None,
        "results_url": f"/v1/messages/batches/{batch.batch_id}/results" if batch.is_over else None,
    }


def _counts(batch: Batch) -> dict[str, int]:
    is_cancelled, num_unanswered = batch.status == "cancelled", batch.unanswered
    return {
        "processing": 0 if batch.is_over else batch.total,
        "succeeded": batch.completed if batch.is_over else 0,
        "errored": batch.failed - num_unanswered if batch.is_over else 0,
        "canceled": num_unanswered if is_cancelled else 0,
        "expired": 0 if is_cancelled else num_unanswered,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def results_of(batch: Batch, files: Files) -> AsyncIterator[bytes]:
    """Yield the results as lines of JSON, those that have a message first."""
    for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
        async for _, line in files.lines(file_id):
            yield dumps(_result(json.loads(line))).encode() + b"\n"


def _result(line: dict[str, Any]) -> dict[str, Any]:
    """Convert a line of a batch's files."""
    response = line["response"]
    if response is None:
        result: dict[str, Any] = {"type": _UNANSWERED[line["error"]["code"]]}
    elif response["status_code"] == 200:
        result = {"type": "succeeded", "message": response["body"]}
    else:
        error = response["body"]["error"]
        problem = Problem(
            response["status_code"], error["message"], error["type"], param=error["param"], code=error["code"]
        )
        result = {"type": "errored", "error": envelope(problem, response["request_id"])}
    return {"custom_id": line["custom_id"], "result": result}
