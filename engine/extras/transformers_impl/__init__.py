"""Models without a class of their own here: transformers' modules over our ragged batch, paged cache and products."""

# Architectures without a native class whose tokens the tests compare with transformers'.
TESTED = (
    "AfmoeForCausalLM", "AXK1ForCausalLM", "BitNetForCausalLM", "Cohere2MoeForCausalLM", "CwmForCausalLM",
    "ExaoneMoeForCausalLM", "FlexOlmoForCausalLM", "GPTBigCodeForCausalLM", "GraniteMoeSharedForCausalLM",
    "HeliumForCausalLM", "HyperCLOVAXForCausalLM", "HYV3ForCausalLM", "Jais2ForCausalLM", "LagunaForCausalLM",
    "MellumForCausalLM", "MiniCPM3ForCausalLM", "NanoChatForCausalLM", "OlmoForCausalLM", "PersimmonForCausalLM",
    "PhiForCausalLM", "SolarOpenForCausalLM", "VaultGemmaForCausalLM", "YoutuForCausalLM",
)  # fmt: skip
