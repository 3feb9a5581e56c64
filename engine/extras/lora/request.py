"""LoRARequest: vLLM's name of an adapter in Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LoRARequest:
    """An adapter: its name and the path of its files. The id is vLLM's and not read: names tell adapters apart.

    LoRARequest("sql", 1, "path/to/folder"), or LoRARequest("sql", "path/to/folder"). Fields after `lora_path` are
    vLLM's without effect here.
    """

    lora_name: str
    lora_int_id: int | str = 1
    lora_path: str | Path = ""
    long_lora_max_len: int | None = None
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """Path of the files; "" if the adapter is loaded already."""
        return str(self.lora_int_id if isinstance(self.lora_int_id, str) else self.lora_path)
