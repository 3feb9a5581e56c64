"""LoRARequest: vLLM's name of an adapter in Python."""

from dataclasses import dataclass


@dataclass(frozen=True, init=False)
class LoRARequest:
    """An adapter: its name and the path of its files. The id is vLLM's and not read: names tell adapters apart.

    LoRARequest("sql", 1, "path/to/folder"), or LoRARequest("sql", "path/to/folder").
    """

    lora_name: str
    lora_int_id: int
    lora_path: str

    def __init__(self, lora_name: str, lora_int_id: int | str = 1, lora_path: str = "", **_foreign: object) -> None:
        path, number = (lora_int_id, 1) if isinstance(lora_int_id, str) else (str(lora_path), lora_int_id)
        vars(self).update(lora_name=lora_name, lora_int_id=number, lora_path=path)
