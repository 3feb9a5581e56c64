"""EngineArgs takes vLLM's keywords, and flags of a script's own parser."""

import argparse
import dataclasses

import pytest

from splitfuse.engine import LLM, EngineArgs, EngineConfig
from splitfuse.engine.errors import ConfigError


def test_keywords_become_settings(tiny_folder: str) -> None:
    args = EngineArgs(tiny_folder, dtype="float", max_num_seqs=3, disable_log_stats=True)
    assert args.create_engine_config() == EngineConfig(model=tiny_folder, dtype="float32", max_num_seqs=3)
    with LLM(**dataclasses.asdict(args)) as llm:
        assert (llm.config.model, llm.config.dtype, llm.config.max_num_seqs) == (tiny_folder, "float32", 3)
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        EngineArgs(max_num_seq=3)


def test_flags_of_a_script_become_settings() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--max-tokens", type=int)
    words = ["--model", "demo", "--max-num-seqs", "3", "--no-enable-prefix-caching", "--max-tokens", "9"]
    parsed = parser.parse_args([*words, "--override-generation-config", '{"top_k": 3}'])
    config = EngineArgs.from_cli_args(parsed).create_engine_config()
    expected = {"max_num_seqs": 3, "enable_prefix_caching": False, "override_generation_config": {"top_k": 3}}
    assert config == EngineConfig(model="demo", **expected)  # type: ignore[arg-type]
    assert parser.format_help()
