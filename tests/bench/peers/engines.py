"""Engines of the peers: a loader takes a folder or a GGUF file, and returns a function from prompts to greedy outputs
of a fixed length.

A peer is imported only when loaded, because this file runs in every peer's own venv.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], list[list[int]]]
first_seconds: list[float] = []  # seconds of each call until all first tokens, from peers that tell them


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Largest load to come."""

    num_seqs: int
    max_model_len: int
    num_threads: int


def splitfuse(folder: Path, largest: Largest, **settings: Any) -> Generate:
    from splitfuse.engine import LLM, SamplingParams

    llm = LLM(
        model=str(folder),
        max_num_seqs=largest.num_seqs,
        max_model_len=largest.max_model_len,
        **_threads(largest, settings),
    )

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        outputs = llm.generate(prompts, params)
        times = [output.metrics for output in outputs]
        first_seconds.append(max(one.first_token_time for one in times) - min(one.arrival_time for one in times))
        return [output.outputs[0].token_ids for output in outputs]

    return generate


def vllm(folder: Path, largest: Largest, **settings: Any) -> Generate:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(folder),
        dtype="bfloat16",
        max_num_seqs=largest.num_seqs,
        max_model_len=largest.max_model_len,
        disable_log_stats=True,
        **settings,
    )

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate


def transformers(folder: Path, largest: Largest, **settings: Any) -> Generate:
    """Load transformers' static `generate`: one batch, all prompts of one length."""
    model = _transformers_model(folder, largest, **settings)
    import torch

    @torch.inference_mode()
    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=output_len, do_sample=False, pad_token_id=0)
        return out[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

    return generate


def transformers_batch(folder: Path, largest: Largest, **settings: Any) -> Generate:
    """Load `generate_batch`: transformers' own continuous batching."""
    model = _transformers_model(folder, largest, **settings)
    from transformers import GenerationConfig

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        config = GenerationConfig(max_new_tokens=output_len, do_sample=False, eos_token_id=-1, pad_token_id=0)
        outputs = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        return [list(output.generated_tokens) for output in outputs.values()]

    return generate


def llamacpp(folder: Path, largest: Largest, **settings: Any) -> Generate:
    """Load llama.cpp by its own API, since the Python class takes one sequence at a time. A folder's GGUF is beside it.

    One llama_decode takes all prompts, then one per further token all sequences; every sequence has its own cache.
    """
    import llama_cpp as lib
    import numpy as np

    lib.llama_backend_init()
    file = folder if folder.suffix == ".gguf" else Path(f"{folder}.gguf")
    model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
    vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    params = lib.llama_context_default_params()
    params.n_ctx = largest.num_seqs * (-(-largest.max_model_len // 256) * 256)
    params.n_seq_max = largest.num_seqs
    params.n_batch = largest.num_seqs * largest.max_model_len
    params.n_threads = params.n_threads_batch = largest.num_threads
    for name, value in settings.items():
        setattr(params, name, value)
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(params.n_batch, 0, 1)

    def step(tokens: Prompts, start: int) -> list[int]:
        """Give each sequence its tokens at position `start`. Returns the likeliest next token of each."""
        count = 0
        for number, ids in enumerate(tokens):
            for offset, token in enumerate(ids):
                batch.token[count], batch.pos[count] = token, start + offset
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, number
                batch.logits[count] = offset == len(ids) - 1
                count += 1
        batch.n_tokens = count
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        last = np.cumsum([len(ids) for ids in tokens]) - 1
        rows = (lib.llama_get_logits_ith(context, int(row)) for row in last)
        return [int(np.argmax(np.ctypeslib.as_array(row, (vocab_size,)))) for row in rows]

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        start = time.perf_counter()
        outputs = [[token] for token in step(prompts, 0)]
        first_seconds.append(time.perf_counter() - start)
        for position in range(len(prompts[0]), len(prompts[0]) + output_len - 1):
            for output, token in zip(outputs, step([output[-1:] for output in outputs], position), strict=True):
                output.append(token)
        return outputs

    return generate


def openvino(folder: Path, largest: Largest, **settings: Any) -> Generate:
    """Load OpenVINO GenAI's continuous batching with dynamic split fuse, from a GGUF file.

    Setting enable_prefix_caching: of its scheduler.
    """
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = largest.num_seqs
    scheduler.cache_size = 2  # GiB
    scheduler.enable_prefix_caching = settings.pop("enable_prefix_caching", False)
    pipeline = genai.LLMPipeline(
        str(folder), "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=largest.num_threads, **settings
    )

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        ids = np.array(prompts, dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        config = genai.GenerationConfig(max_new_tokens=output_len, ignore_eos=True, do_sample=False)
        return [list(tokens) for tokens in pipeline.generate(inputs, config).tokens]

    return generate


def _threads(largest: Largest, settings: dict[str, Any]) -> dict[str, Any]:
    return {"num_threads": largest.num_threads} | settings


def _transformers_model(folder: Path, largest: Largest, **settings: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(largest.num_threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **settings).eval()
    model.generation_config.eos_token_id = None
    return model


PEERS = {peer.__name__: peer for peer in (splitfuse, vllm, transformers, transformers_batch, llamacpp, openvino)}
