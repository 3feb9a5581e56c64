"""One tiny model for the tests that do not care which."""

import pytest
from tiny_models import save_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    save_model("llama-gqa-tied", folder)
    return str(folder)
