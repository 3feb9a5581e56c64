"""File and batch objects in OpenAI's form."""

from typing import Any

from ..durable.batch_rows import FileRow
from .batch import Batch

_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def file_object(file: FileRow) -> dict[str, Any]:
    """Describe a file, without its contents."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: Batch) -> dict[str, Any]:
    """Describe a batch as it is now. Its files can be read once it has ended."""
    times = {f"{name}_at": int(batch.times[name]) if name in batch.times else None for name in _TIMES}
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.is_over else None,
        "error_file_id": batch.error_file_id if batch.is_over else None,
        "created_at": int(batch.created),
        **times,
        "expires_at": int(batch.deadline),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
    }
