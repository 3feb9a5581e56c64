"""What several files of tests want: a tiny model, the demo model's tokenizer and grammars."""

import pytest
from tiny_models import save_model

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.models.registry import read_model_config
from splitfuse.engine.structured_output.compiler import GrammarCompiler
from splitfuse.engine.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    save_model("llama-gqa-tied", folder)
    return str(folder)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The demo model's."""
    return Tokenizer(DEMO_FOLDER)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    """For the demo model."""
    return GrammarCompiler(tokenizer, read_model_config(DEMO_FOLDER))
