"""Names of a served model that follow from its file or folder. Imports no torch."""

import re
from pathlib import Path

_ENDING = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)


def file_names(model: str) -> list[str]:
    """Return the name to show, then others: what was typed, and a file's name with and without its ending.

    Only a local file or folder is shown by its name; a hub id or a short name stays as it is.
    """
    path = Path(model).expanduser()
    typed = path.name or path.resolve().name  # "." has no name of its own
    file = typed.rpartition(":")[2] if _ENDING.search(typed) else typed
    stem = _ENDING.sub("", file)
    is_local = path.exists() or (stem != file == typed)
    return [stem if is_local else model, model, file, stem]
