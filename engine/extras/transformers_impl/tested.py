"""Architectures without a native class whose tokens the tests compare with transformers'. Imports nothing."""

TESTED = (
    "AfmoeForCausalLM", "BitNetForCausalLM", "CwmForCausalLM", "ExaoneMoeForCausalLM", "FlexOlmoForCausalLM",
    "GPTBigCodeForCausalLM", "GraniteMoeSharedForCausalLM", "HeliumForCausalLM", "HyperCLOVAXForCausalLM",
    "Jais2ForCausalLM", "MellumForCausalLM", "MiniCPM3ForCausalLM", "NanoChatForCausalLM", "OlmoForCausalLM",
    "PersimmonForCausalLM", "PhiForCausalLM", "PhimoeForCausalLM", "SolarOpenForCausalLM", "VaultGemmaForCausalLM",
    "YoutuForCausalLM",
)  # fmt: skip
