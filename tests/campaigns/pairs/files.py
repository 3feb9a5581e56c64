"""Files that servers of the campaign need: a model with recurrent states, an adapter, and a database."""

import shutil
import tempfile
from functools import reduce
from pathlib import Path
from typing import Self

import pytest
import torch
from pairs.switches import Row, arguments
from postgres_server import PostgresServer
from tiny_adapters import random_adapter, save_adapter
from tiny_models import save_model, write_config
from transformers import AutoModelForCausalLM

from splitfuse.engine.config import DEMO_FOLDER


class Files:
    """Folder of a run, and PostgreSQL if it is installed; the `with` block removes both."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pairs-"))
        try:
            self._postgres: PostgresServer | None = PostgresServer()
        except pytest.skip.Exception as exc:
            self._postgres = None
            print(f"without a database: {exc}", flush=True)

    def __enter__(self) -> Self:
        if self._postgres is not None:
            self._postgres.start()
        shutil.copytree(DEMO_FOLDER, self._folder / "demo")
        save_model("qwen3-next", self._folder / "hybrid")
        write_config(self._folder / "hybrid", max_position_embeddings=2048)  # a token is a byte
        for name in ("chat_template.jinja", "generation_config.json"):
            shutil.copy(DEMO_FOLDER / name, self._folder / "hybrid" / name)
        model = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32)
        save_adapter(self._folder / "adapter", random_adapter(model, seed=1))
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._postgres is not None:
            self._postgres.remove()
        shutil.rmtree(self._folder)

    def arguments(self, row: Row, folder: str) -> list[str]:
        """Return a server's arguments. FOLDER: the row's own, FILES: the run's, DATABASE: an empty one."""
        args = arguments(row)
        places = {"FOLDER": folder, "FILES": str(self._folder)}
        if "DATABASE" in args:  # without PostgreSQL a file
            places["DATABASE"] = f"{folder}/results" if self._postgres is None else self._postgres.database()
        return [reduce(lambda text, place: text.replace(*place), places.items(), part) for part in args]

    def weights(self, row: Row) -> str:
        """Return the folder of a server's weights."""
        return str(self._folder / row["model"])
