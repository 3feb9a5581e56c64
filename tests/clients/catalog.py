"""The clients that `make clients` runs, in this order: what each needs, in which version, and its script."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Client:
    """A package, what is installed for it (pip's or npm's words) and the script that uses it."""

    name: str
    script: str
    requirements: tuple[str, ...]
    with_packages: bool = True  # False: what the requirements themselves need is named here too, or not needed

    @property
    def is_node(self) -> bool:
        """Whether it runs in node."""
        return self.script.endswith(".mjs")


CLIENTS = (
    Client("openai", "openai_sdk.py", ("openai==3.54.0",)),
    Client("anthropic", "anthropic_sdk.py", ("anthropic==2.12.0",)),
    Client("ollama", "ollama_sdk.py", ("ollama==0.6.3",)),
    Client("openai-agents", "openai_agents_sdk.py", ("openai-agents==0.24.0",)),
    Client("langchain", "langchain_sdk.py", ("langchain-openai==1.7.3", "langchain==1.4.7")),
    Client("litellm", "litellm_sdk.py", ("litellm==1.106.2",)),
)
