"""Names of the formats of tool calls and of reasoning, for settings that must not import the formats themselves."""

TOOL_FORMAT_NAMES = (
    *("openai", "qwen3_coder", "qwen3_xml", "hermes", "mistral_list", "mistral", "deepseek_v3", "deepseek_v31"),
    *("granite", "phi4_mini_json", "llama4_pythonic", "pythonic", "lfm2", "llama3_json"),
)
REASONING_FORMAT_NAMES = ("openai_gptoss", "think", "qwen3", "deepseek_r1", "mistral", "granite")
