"""Choice of the part of an engine that pools. The part itself is imported for a model that does."""

from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...serving.engine_part import ServedModel
from . import PoolingSettings

if TYPE_CHECKING:
    from .pooler import Pooler


def pooler_for(model: ServedModel) -> "Pooler | None":
    """Make the pooler of a model that pools by its files, by its class or by the setting; None for all others."""
    is_pooled_by_files = (model.folder / "modules.json").exists() or not getattr(model.runner.model, "generates", True)
    if model.wishes.section(PoolingSettings).pooler_config is None and not is_pooled_by_files:
        return None
    if getattr(model.wishes, "enable_lora", False):
        raise ConfigError("--enable-lora is not built for models that pool; leave it out, or merge the adapter")
    from .pooler import Pooler

    return Pooler(model.wishes, model.folder, model.runner, model.tokenizer)
