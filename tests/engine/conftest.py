"""Shared fixtures: a tiny model, the demo model's tokenizer and grammars.

Fixtures import on use: most tests here need no torch, whose import costs seconds.
"""

import logging
from typing import TYPE_CHECKING

import pytest

from splitfuse.engine.config import DEMO_FOLDER

if TYPE_CHECKING:
    from splitfuse.engine.language.structured_output.compiler import GrammarCompiler
    from splitfuse.engine.language.text.tokenizer import Tokenizer


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Log no failure of a request: they are part of every world."""
    caplog.set_level(logging.CRITICAL, logger="splitfuse.engine")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tiny_models import save_model

    folder = tmp_path_factory.mktemp("tiny")
    save_model("llama-gqa-tied", folder)
    return str(folder)


@pytest.fixture(scope="module")
def tokenizer() -> "Tokenizer":
    """Tokenizer of the demo model."""
    from splitfuse.engine.language.text.tokenizer import Tokenizer

    return Tokenizer(DEMO_FOLDER)


@pytest.fixture(scope="module")
def compiler(tokenizer: "Tokenizer") -> "GrammarCompiler":
    """Compiler of grammars for the demo model."""
    from splitfuse.engine.execution.models.registry import read_model_config
    from splitfuse.engine.language.structured_output.compiler import GrammarCompiler

    return GrammarCompiler(tokenizer, read_model_config(DEMO_FOLDER))
