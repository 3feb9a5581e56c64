"""Which settings may mean a model that pools: decided before the model is there, so a hub id counts as one."""

import json
from pathlib import Path
from typing import Any


def may_pool(settings: Any) -> bool:
    """False if the model's files say that it makes text alone. If this cannot be known, routes answer 404 by name."""
    if any(getattr(settings, name, None) is not None for name in ("pooler_config", "embedding_model")):
        return True
    if settings.is_demo or settings.model == "smollm2" or str(settings.model).endswith(".gguf"):
        return False
    folder = Path(str(settings.model))
    if not folder.is_dir() or (folder / "modules.json").exists():
        return True
    try:
        names = json.loads((folder / "config.json").read_bytes()).get("architectures") or [""]
        return not str(names[0]).endswith(("ForCausalLM", "LMHeadModel"))
    except (OSError, ValueError, AttributeError, LookupError):
        return False  # loading the model names the fault
