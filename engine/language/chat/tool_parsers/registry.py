"""TOOL_FORMATS: formats in which models write tool calls, under vLLM's names for its parsers."""

from . import deepseek, granite, harmony, hermes, llama3_json, mistral, phi4_mini_json, pythonic, qwen3_coder

# If a template matches several formats, the first is used.
TOOL_FORMATS = {
    "openai": harmony.FORMAT,
    "qwen3_coder": qwen3_coder.FORMAT,
    "qwen3_xml": qwen3_coder.FORMAT,
    "hermes": hermes.FORMAT,
    "mistral_list": mistral.LIST_FORMAT,
    "mistral": mistral.NAMED_FORMAT,
    "deepseek_v3": deepseek.V3_FORMAT,
    "deepseek_v31": deepseek.V31_FORMAT,
    "granite": granite.FORMAT,
    "phi4_mini_json": phi4_mini_json.FORMAT,
    "llama4_pythonic": pythonic.FORMAT,
    "pythonic": pythonic.FORMAT,
    "llama3_json": llama3_json.FORMAT,
}
NEUTRAL_FORMAT = "hermes"  # for models whose template shows no format; described_tools.py describes it in the prompt


def detected_format(template: str) -> str | None:
    """Return the name of the first format that the chat template asks for; None if it asks for none."""
    return next((name for name, tool_format in TOOL_FORMATS.items() if tool_format.matches(template)), None)
