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
    pools: bool = False  # True: on the models with --pooler-config, for packages that embed
    is_scripted: bool = False  # True: on the demo model with the extension of site/, which says what a script says
    is_harmony: bool = False  # True: on a tiny random gpt-oss in place of the demo model
    family: str = ""  # folder of clients with equal requirements; without it the client's own

    @property
    def kind(self) -> tuple[bool, bool, bool, bool]:
        """Kind of server; clients of one kind share theirs."""
        return (self.has_key, self.is_scripted, self.pools, self.is_harmony)

    @property
    def is_node(self) -> bool:
        """True if the script runs in node."""
        return self.script.endswith(".mjs")

    @property
    def is_npm(self) -> bool:
        """True if npm installs the requirements."""
        return "==" not in self.requirements[0]

    @property
    def folder(self) -> str:
        """Name of the folder that holds the installed packages."""
        return self.family or self.name


_PYDANTIC_AI = ("pydantic-ai-slim[openai,anthropic]==2.68.0",)
_LANGGRAPH = ("langgraph==1.2.24", "langchain-anthropic==1.7.10", "langchain-openai==1.7.4", "langchain==1.5.2")
_AGENT_FRAMEWORK = ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0")
_CLAUDE_CODE = ("@anthropic-ai/claude-code@2.1.332",)
_AI_SDK = (
    *("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "@ai-sdk/anthropic@4.0.105", "@ai-sdk/openai@4.0.118"),
    "zod@4.6.7",
)
_NODE_LANGCHAIN = (
    *("@langchain/openai@1.6.0", "@langchain/core@1.4.0", "@langchain/langgraph@1.7.3", "@langchain/anthropic@1.5.11"),
    "zod@4.6.7",
)
_ANTHROPIC = ("anthropic==2.14.0",)
_INSTRUCTOR = ("@instructor-ai/instructor@1.7.0", "openai@7.57.0", "zod@3.25.76")
_LLAMAINDEX = ("llamaindex@0.12.1", "@llamaindex/openai@0.4.22", "@llamaindex/workflow@1.1.24", "zod@3.25.76")
_OPENLLMETRY = ("opentelemetry-instrumentation-openai==0.62.4", "opentelemetry-sdk==1.45.2", "openai==3.57.0")

_EMBEDDINGS = (
    *("openai==3.57.0", "ollama==0.6.3", "cohere==7.3.1", "langchain-openai==1.7.4", "haystack-ai==3.4.0"),
    "llama-index-embeddings-openai-like==0.4.0",
)

CLIENTS = (
    Client("openai", "openai_sdk.py", ("openai==3.57.0",)),
    Client("anthropic", "anthropic_sdk.py", _ANTHROPIC),
    Client("ollama", "ollama_sdk.py", ("ollama==0.6.3",)),
    Client("openai-agents", "openai_agents_sdk.py", ("openai-agents==0.24.0",)),
    Client(
        "openai-agents-gpt-oss",
        "openai_agents_harmony_sdk.py",
        ("openai-agents==0.24.0",),
        is_harmony=True,
        family="openai-agents",
    ),
    Client("langchain", "served_sdk.py", ("langchain-openai==1.7.4", "langchain==1.5.2")),
    Client("pydantic-ai", "served_sdk.py", _PYDANTIC_AI),
    Client("litellm", "served_sdk.py", ("litellm==1.110.2", "mcp==2.3.0")),
    Client("instructor", "served_sdk.py", ("instructor==1.17.0",)),
    Client("llm", "commands_cli.py", ("llm==0.36",)),
    Client("huggingface_hub", "served_sdk.py", ("huggingface_hub==2.4.0",)),
    Client("outlines", "served_sdk.py", ("outlines==1.3.3", "openai==3.57.0")),
    Client("guidance", "served_sdk.py", ("guidance==0.3.1", "openai==3.57.0")),
    Client("guidellm", "commands_cli.py", ("guidellm==0.8.1",), shares_torch=True),
    Client("llama-index", "served_sdk.py", ("llama-index-llms-openai-like==0.8.1",)),
    Client("dspy", "served_sdk.py", ("dspy==3.4.1",)),
    Client("lm-eval", "commands_cli.py", ("lm-eval[api]==0.4.13",), shares_torch=True),
    Client("locust", "commands_cli.py", ("locust==2.47.0",)),
    Client("aiperf", "commands_cli.py", ("aiperf==0.13.0",)),
    Client("inspect-ai", "served_sdk.py", ("inspect-ai==0.3.285", "openai==3.57.0")),
    Client("node-openai", "openai_node.mjs", ("openai@7.57.0", "zod@4.6.7")),
    Client("node-ai-sdk", "ai_sdk.mjs", _AI_SDK),
    Client("node-langchain", "langchain_node.mjs", _NODE_LANGCHAIN),
    Client("claude-code", "claude_code.mjs", _CLAUDE_CODE),
    Client("browser", "browser_page.py", ("playwright==1.65.2",), has_key=False),
    Client("codex", "agents_cli.py", ("@openai/codex@0.171.0",), is_scripted=True),
    Client("claude-code-agent", "agents_cli.py", _CLAUDE_CODE, is_scripted=True, family="claude-code"),
    Client("opencode", "agents_cli.py", ("opencode-ai@1.18.33",), is_scripted=True),
    Client("qwen-code", "agents_cli.py", ("@qwen-code/qwen-code@0.24.4",), is_scripted=True),
    Client("aider", "agents_cli.py", ("aider-chat==0.86.2",), is_scripted=True),
    Client("pydantic-ai-anthropic", "scripted_sdk.py", _PYDANTIC_AI, is_scripted=True, family="pydantic-ai"),
    Client("smolagents", "scripted_sdk.py", ("smolagents[openai]==1.26.0",), is_scripted=True),
    Client("haystack", "scripted_sdk.py", ("haystack-ai==3.4.1",), is_scripted=True),
    Client("semantic-kernel", "scripted_sdk.py", ("semantic-kernel==1.45.0",), is_scripted=True),
    Client("autogen", "scripted_sdk.py", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"), is_scripted=True),
    Client("langgraph", "scripted_sdk.py", _LANGGRAPH, is_scripted=True),
    Client("crewai", "scripted_sdk.py", ("crewai==1.15.30",), is_scripted=True),
    Client("agno", "scripted_sdk.py", ("agno==3.1.10", "openai==3.57.0"), is_scripted=True),
    Client("strands", "scripted_sdk.py", ("strands-agents[openai,anthropic]==1.62.0",), is_scripted=True),
    Client("agent-framework", "scripted_sdk.py", _AGENT_FRAMEWORK, is_scripted=True),
    Client("anthropic-tool-runner", "anthropic_runner_sdk.py", _ANTHROPIC, is_scripted=True, family="anthropic"),
    Client("aisuite", "scripted_sdk.py", ("aisuite[openai,anthropic]==0.2.0",), is_scripted=True),
    Client("any-llm", "scripted_sdk.py", ("any-llm-sdk[openai,anthropic]==1.40.2",), is_scripted=True),
    Client("deepeval", "scripted_sdk.py", ("deepeval==4.3.1",), is_scripted=True),
    Client("gptme", "agents_cli.py", ("gptme==0.35.1",), is_scripted=True),
    Client("gradio", "scripted_sdk.py", ("gradio==6.31.0", "openai==3.57.0"), is_scripted=True),
    Client("httpie", "commands_cli.py", ("httpie==3.2.4",), is_scripted=True),
    Client("langfuse", "scripted_sdk.py", ("langfuse==5.0.4", "openai==3.57.0"), is_scripted=True),
    Client("litellm-proxy", "litellm_proxy_cli.py", ("litellm[proxy]==1.108.7",), is_scripted=True),
    Client("magentic", "scripted_sdk.py", ("magentic==0.41.1",), is_scripted=True),
    Client("mem0", "scripted_sdk.py", ("mem0ai==2.2.1",), is_scripted=True),
    Client("mirascope", "scripted_sdk.py", ("mirascope[openai]==2.8.2",), is_scripted=True),
    Client("openllmetry", "scripted_sdk.py", _OPENLLMETRY, is_scripted=True),
    Client(
        "open-interpreter",
        "commands_cli.py",
        ("open-interpreter==0.4.3", "setuptools==80.10.2"),
        is_scripted=True,
    ),
    Client("portkey", "scripted_sdk.py", ("portkey-ai==2.3.4",), is_scripted=True),
    Client("prometheus_client", "prometheus_client_sdk.py", ("prometheus_client==0.26.0",), is_scripted=True),
    Client("shell-gpt", "commands_cli.py", ("shell-gpt==1.5.1", "click==8.5.1"), is_scripted=True),
    Client("node-anthropic", "anthropic_node.mjs", ("@anthropic-ai/sdk@1.14.0",), is_scripted=True),
    Client("node-ai-sdk-agent", "ai_sdk_agent.mjs", _AI_SDK, is_scripted=True, family="node-ai-sdk"),
    Client("node-openai-agents", "openai_agents_node.mjs", ("@openai/agents@0.20.0", "zod@4.6.7"), is_scripted=True),
    Client("node-langgraph", "langgraph_node.mjs", _NODE_LANGCHAIN, is_scripted=True, family="node-langchain"),
    Client("node-llamaindex", "llamaindex_node.mjs", _LLAMAINDEX, is_scripted=True),
    Client("node-instructor", "instructor_node.mjs", _INSTRUCTOR, is_scripted=True),
    Client("node-huggingface", "huggingface_node.mjs", ("@huggingface/inference@4.13.30",), is_scripted=True),
    Client("node-ollama", "ollama_node.mjs", ("ollama@0.6.4",), is_scripted=True),
    Client("autocannon", "autocannon.mjs", ("autocannon@9.0.0",), is_scripted=True),
    Client("continue", "agents_cli.py", ("@continuedev/cli@1.5.47",), is_scripted=True),
    Client("opencommit", "commands_cli.py", ("opencommit@3.3.10",), is_scripted=True),
    Client("promptfoo", "commands_cli.py", ("promptfoo@0.121.20",), is_scripted=True),  # later ones need node 22
    Client("embeddings", "embeddings_sdk.py", _EMBEDDINGS, pools=True),
)
