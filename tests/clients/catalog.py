"""Catalog of the clients that `make clients` runs, in this order: requirements with versions, and scripts."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Client:
    """Client package: its requirements (pip's or npm's words), and the script that uses it."""

    name: str
    script: str
    requirements: tuple[str, ...]
    has_key: bool = True  # False: the client's server has no keys
    shares_torch: bool = False  # uses the packages of the server's environment, because torch has gigabytes

    @property
    def is_node(self) -> bool:
        """True if the client runs in node."""
        return self.script.endswith(".mjs")


CLIENTS = (
    Client("openai", "openai_sdk.py", ("openai==3.54.0",)),
    Client("anthropic", "anthropic_sdk.py", ("anthropic==2.12.0",)),
    Client("ollama", "ollama_sdk.py", ("ollama==0.6.3",)),
    Client("openai-agents", "openai_agents_sdk.py", ("openai-agents==0.24.0",)),
    Client("langchain", "langchain_sdk.py", ("langchain-openai==1.7.3", "langchain==1.4.7")),
    Client("pydantic-ai", "pydantic_ai_sdk.py", ("pydantic-ai-slim[openai]==2.68.0",)),
    Client("litellm", "litellm_sdk.py", ("litellm==1.106.2", "mcp==2.3.0")),
    Client("instructor", "instructor_sdk.py", ("instructor==1.17.0",)),
    Client("llm", "llm_cli.py", ("llm==0.36",)),
    Client("huggingface_hub", "huggingface_hub_sdk.py", ("huggingface_hub==2.4.0",)),
    Client("outlines", "outlines_sdk.py", ("outlines==1.3.3", "openai==3.54.0")),
    Client("guidance", "guidance_sdk.py", ("guidance==0.3.1", "openai==3.54.0")),
    Client("guidellm", "guidellm_cli.py", ("guidellm==0.8.1",), shares_torch=True),
    Client("llama-index", "llama_index_sdk.py", ("llama-index-llms-openai-like==0.8.1",)),
    Client("dspy", "dspy_sdk.py", ("dspy==3.4.1",)),
    Client("lm-eval", "lm_eval_cli.py", ("lm-eval[api]==0.4.13",), shares_torch=True),
    Client("locust", "locust_cli.py", ("locust==2.47.0",)),
    Client("aiperf", "aiperf_cli.py", ("aiperf==0.13.0",)),
    Client("inspect-ai", "inspect_ai_sdk.py", ("inspect-ai==0.3.285", "openai==3.54.0")),
    Client("node-openai", "openai_node.mjs", ("openai@6.49.0", "zod@4.6.7")),
    Client("node-ai-sdk", "ai_sdk.mjs", ("ai@6.0.326", "@ai-sdk/openai-compatible@2.0.91", "zod@4.6.7")),
    Client("node-langchain", "langchain_node.mjs", ("@langchain/openai@1.5.8", "@langchain/core@1.4.0", "zod@4.6.7")),
    Client("claude-code", "claude_code.mjs", ("@anthropic-ai/claude-code@2.1.328",)),
    Client("browser", "browser_page.py", ("playwright==1.65.2",), has_key=False),
)
