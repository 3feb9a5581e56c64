"""Embeddings, scores and classes equal transformers', and to the bit themselves in any company and any cut."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_files import add_vocabulary
from random_schedule import Arrival, random_llm, run_schedule
from safetensors.torch import load_file
from tiny_encoders import DECODERS, ENCODERS, OTHER_CONFIGS, save_pooled, write
from tiny_models import VOCAB_SIZE, save_model
from transformers import PreTrainedModel

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError, ContextLengthError, InvalidRequestError
from splitfuse.engine.extras.pooling.params import PoolingParams
from splitfuse.engine.extras.pooling.pooler import Pooler
from splitfuse.engine.serving.memory_plan import plan_memory
from splitfuse.server.cli import main

ROW = Callable[[torch.Tensor], torch.Tensor]
POOLED: dict[str, ROW] = {
    "mean": lambda states: states.mean(0),
    "cls": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
}


def prompts(rng: random.Random, count: int, *, longest: int = 300) -> list[list[int]]:
    """Random inputs without the padding token, the first with one token."""
    lengths = [1, *(rng.randint(2, longest) for _ in range(count - 1))]
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def states_of(model: PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = model(torch.tensor([prompt])).last_hidden_state[0]
    return states


def cosine(ours: Sequence[float], theirs: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(torch.tensor(ours).double(), theirs.double(), dim=0))


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_embeddings_equal_transformers(name: str, pooling: str, tmp_path: Path, rng: random.Random) -> None:
    theirs = save_pooled(name, tmp_path, pooling=pooling)
    inputs = prompts(rng, 6)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_num_seqs=4)
    for prompt, output in zip(inputs, llm.embed(inputs), strict=True):
        expected = torch.nn.functional.normalize(POOLED[pooling](states_of(theirs, prompt)), dim=0)
        assert cosine(output.outputs.embedding, expected) >= 0.99999
        np.testing.assert_allclose(output.outputs.embedding, expected.numpy(), atol=2e-5)


# Encoder -> its architecture in GGUF, number of rows that the converter cuts from the positions, pooling_type.
IN_GGUF = {"bert": ("bert", 0, 1), "xlm-roberta": ("bert", 2, 2), "nomic": ("nomic-bert", 0, 1)}
IN_GGUF |= {"modernbert": ("modern-bert", 0, 2)}


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_of_an_encoder_gives_the_same_embeddings(name: str, tmp_path: Path, rng: random.Random) -> None:
    architecture, num_cut, pooling = IN_GGUF[name]
    theirs = save_pooled(name, tmp_path / "folder")
    write_encoder(tmp_path, theirs.config, architecture, num_cut, pooling, modern=name == "modernbert")
    inputs, row = prompts(rng, 5), POOLED["mean" if pooling == 1 else "cls"]
    for prompt, output in zip(inputs, LLM(str(tmp_path / "m.gguf"), dtype="float32").embed(inputs), strict=True):
        expected = torch.nn.functional.normalize(row(states_of(theirs, prompt)), dim=0)
        np.testing.assert_allclose(output.outputs.embedding, expected.numpy(), atol=2e-5)


def test_a_gguf_file_of_a_reranker_gives_the_same_scores(tmp_path: Path, rng: random.Random) -> None:
    theirs = save_pooled("xlm-roberta", tmp_path / "folder", num_labels=1)
    write_encoder(tmp_path, theirs.config, "bert", 2, 4)
    inputs = prompts(rng, 4)
    ours = LLM(str(tmp_path / "m.gguf"), dtype="float32").classify(inputs)
    folder = LLM(str(tmp_path / "folder"), dtype="float32").classify(inputs)
    for output, expected in zip(ours, folder, strict=True):
        np.testing.assert_allclose(output.outputs.probs, expected.outputs.probs, atol=2e-5)


def test_a_gguf_file_of_embeddinggemma_has_the_matrices_behind_the_mean(tmp_path: Path, rng: random.Random) -> None:
    theirs = save_pooled("embedding-gemma", tmp_path / "folder")
    dense = {f"dense_{number}.weight": torch.randn(*shape) for number, shape in ((2, (96, 64)), (3, (48, 96)))}
    write_encoder(tmp_path, theirs.config, "gemma-embedding", 0, 1, dense=dense)
    inputs = prompts(rng, 5)
    for prompt, output in zip(inputs, LLM(str(tmp_path / "m.gguf"), dtype="float32").embed(inputs), strict=True):
        mean = states_of(theirs, prompt).mean(0)
        expected = torch.nn.functional.normalize(dense["dense_3.weight"] @ (dense["dense_2.weight"] @ mean), dim=0)
        np.testing.assert_allclose(output.outputs.embedding, expected.numpy(), atol=2e-5)


def write_encoder(
    tmp_path: Path,
    config: Any,
    architecture: str,
    num_cut: int,
    pooling: int,
    *,
    modern: bool = False,
    dense: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write the tensors of a folder, which transformers has saved, in the manner of llama.cpp's converter."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.add_context_length(config.max_position_embeddings - num_cut)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if is_gemma := architecture == "gemma-embedding":
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_sliding_window(config.to_dict()["sliding_window"])
        writer.add_sliding_window_pattern(2)
        writer.add_float32("gemma-embedding.attention.scale", config.query_pre_attn_scalar**-0.5)
    else:
        writer.add_layer_norm_eps(getattr(config, "norm_eps", None) or config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    if modern:
        writer.add_sliding_window(config.local_attention)
    if architecture == "nomic-bert":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_vocabulary(writer)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for key, tensor in load_file(tmp_path / "folder/model.safetensors").items():
        plain = key.removeprefix("bert.").removeprefix("roberta.").removeprefix("nomic_bert.")
        plain, tensor = (f"model.{plain}", tensor + ("norm" in plain)) if is_gemma else (plain, tensor)
        written = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if written is not None and "pooler" not in plain:
            rows = tensor[num_cut:] if "position_embeddings" in plain else tensor
            writer.add_tensor(written, rows.contiguous().numpy())
    for key, tensor in (dense or {}).items():
        writer.add_tensor(key, tensor.numpy())
    for write_part in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write_part()
    writer.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", ENCODERS)
def test_other_configs_than_the_published_one(name: str, number: int, tmp_path: Path, rng: random.Random) -> None:
    changes = OTHER_CONFIGS[name][number]
    theirs = save_pooled(name, tmp_path, changes=changes, is_bare=changes is None)
    inputs = [[9 if token == 5 else token for token in prompt] for prompt in prompts(rng, 4)]  # 5: padding of some
    llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    for prompt, output in zip(inputs, llm.embed(inputs), strict=True):
        expected = torch.nn.functional.normalize(states_of(theirs, prompt).mean(0), dim=0)
        np.testing.assert_allclose(output.outputs.embedding, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("bert", {"is_decoder": True}),
        ("roberta", {"position_embedding_type": "relative_key"}),
        ("modernbert", {"hidden_activation": "tanh"}),
        ("nomic", {"hidden_act": "gelu"}),
        ("nomic", {"rotary_emb_fraction": 0.5}),
        ("nomic", {"activation_function": "geglu"}),
    ],
)
def test_a_value_that_is_not_built_is_refused_by_name(name: str, field: dict[str, Any], tmp_path: Path) -> None:
    save_pooled(name, tmp_path)
    path = tmp_path / "config.json"
    write(path, json.loads(path.read_text()) | field)
    with pytest.raises(ConfigError, match=str(next(iter(field.values())))):
        LLM(str(tmp_path), dtype="float32", device="cpu")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "modernbert", "qwen3", "llama"])
def test_classes_equal_transformers(name: str, num_labels: int, tmp_path: Path, rng: random.Random) -> None:
    theirs = save_pooled(name, tmp_path, num_labels=num_labels)
    inputs = prompts(rng, 5)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    for prompt, output in zip(inputs, llm.classify(inputs), strict=True):
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompt])).logits[0]
        expected = logits.sigmoid() if num_labels == 1 else logits.softmax(0)
        np.testing.assert_allclose(output.outputs.probs, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen3"])
def test_memory_is_planned(name: str, tmp_path: Path) -> None:
    """As for a chat model, from shapes alone; an encoder keeps the keys and values of one layer."""
    save_pooled(name, tmp_path, num_labels=2)
    planned = plan_memory(EngineConfig(model=str(tmp_path), dtype="float32", device="cpu"), tmp_path)
    config = planned.model
    num_layers = 1 if name in ENCODERS else config.num_layers
    assert planned.token_bytes == num_layers * 2 * config.num_kv_heads * config.head_dim * 4


def test_a_pair_has_segments(tmp_path: Path) -> None:
    theirs = save_pooled("bert", tmp_path, num_labels=1)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    (output,) = llm.score("rain", "wet weather")
    encoding = llm.get_tokenizer().encode_batch([("rain", "wet weather")])[0]
    with torch.inference_mode():
        ids, segments = torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])
        expected = theirs(ids, token_type_ids=segments).logits[0].sigmoid()
    assert segments.sum() == len("wet weather") + 1
    assert output.outputs.score == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "pooling"), [("qwen3", "lasttoken"), ("qwen3", "mean"), ("mistral-window", "cls"),
                                               ("bert", "mean"), ("modernbert", "cls")])  # fmt: skip
def test_no_schedule_changes_a_bit(name: str, pooling: str, seed: int, tmp_path: Path) -> None:
    """Alone and in company, under random budgets, chunks, pools that preempt, aborts; a decoder beside generation."""
    rng = random.Random(seed)
    save_pooled(name, tmp_path, pooling=pooling)
    inputs = prompts(rng, 12, longest=200)
    alone_llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    alone = [alone_llm.embed([prompt])[0].outputs.embedding for prompt in inputs]
    budget = {"max_num_batched_tokens": rng.randint(200, 600)} if name in ENCODERS else {}  # its rows are not cut
    llm = random_llm(rng, str(tmp_path), max_tokens_of_one=220, block_sizes=(1, 4, 16), **budget)
    pooler = llm.engine.part(Pooler)
    assert pooler is not None
    made = pooler.embedding_prompts([*inputs, *inputs[:3]], PoolingParams())
    arrivals = [Arrival(item.token_ids, item.params, at_step=rng.randint(0, 20)) for item in made]
    for victim in rng.sample(arrivals, 2):
        victim.abort_after = rng.randint(0, 3)
    run_schedule(llm, arrivals)
    for item, arrival, expected in zip(made, arrivals, [*alone, *alone[:3]], strict=True):
        assert not arrival.output.token_ids
        if arrival.output.finish_reason == "abort":
            continue
        assert arrival.output.finish_reason == "stop"
        assert item.task.result is not None
        assert item.task.result.tolist() == expected


@pytest.mark.parametrize(("pooling", "dtype"), [("LAST", "float32"), ("MEAN", "bfloat16")])
@pytest.mark.parametrize("is_async", [False, True], ids=["", "a step in flight"])
def test_a_chat_model_pools_beside_its_tokens(
    pooling: str, dtype: str, tmp_path: Path, rng: random.Random, *, is_async: bool
) -> None:
    """Both kinds of rows share steps, and neither changes a bit of the other."""
    save_model("llama-gqa-tied", tmp_path)
    inputs = prompts(rng, 8, longest=150)
    settings: dict[str, Any] = {"dtype": dtype, "device": "cpu", "pooler_config": {"pooling_type": pooling}}
    llm = LLM(str(tmp_path), **settings, max_num_seqs=6, max_num_batched_tokens=64, async_scheduling=is_async)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    texts = [output.outputs[0].token_ids for output in llm.generate(inputs, greedy)]
    vectors = [output.outputs.embedding for output in llm.embed(inputs)]
    pooler = llm.engine.part(Pooler)
    assert pooler is not None
    made = pooler.embedding_prompts(inputs, PoolingParams())
    chats = [Arrival(prompt, greedy) for prompt in inputs]
    run_schedule(llm, [*chats, *(Arrival(item.token_ids, item.params, at_step=3) for item in made)])
    assert [chat.output.token_ids for chat in chats] == texts
    assert [item.task.result.tolist() for item in made] == vectors  # type: ignore[union-attr]


def test_a_recording_is_replayed(tmp_path: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
    save_model("llama-gqa-tied", tmp_path / "model")
    recording = str(tmp_path / "recording.jsonl")
    llm = LLM(
        str(tmp_path / "model"), device="cpu", pooler_config={"pooling_type": "MEAN"}, record=recording, max_num_seqs=3
    )
    llm.embed(prompts(rng, 6))
    llm.generate(prompts(rng, 3), max_tokens=5)
    llm.close()
    assert main(["replay", recording]) == 0
    assert "identical" in capsys.readouterr().out


def test_generation_is_refused_without_a_head(tmp_path: Path) -> None:
    save_pooled("qwen3", tmp_path)
    with pytest.raises(InvalidRequestError, match="generates no text"):
        LLM(str(tmp_path), device="cpu").generate([[2, 3]])


def test_a_chat_model_has_no_embeddings(tiny_folder: str) -> None:
    with pytest.raises(InvalidRequestError, match="--pooler-config"):
        LLM(tiny_folder, device="cpu").embed("Hello")


def test_matryoshka_keeps_the_first_dimensions(tmp_path: Path) -> None:
    save_pooled("qwen3", tmp_path, pooling="lasttoken")
    llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    (whole,), (short,) = llm.embed("rain"), llm.embed("rain", PoolingParams(dimensions=16))
    cut = np.array(whole.outputs.embedding[:16])
    np.testing.assert_allclose(short.outputs.embedding, cut / np.linalg.norm(cut), atol=1e-6)
    with pytest.raises(InvalidRequestError, match="dimensions 65 is more than the 64"):
        llm.embed("rain", PoolingParams(dimensions=65))


def test_the_files_decide(tmp_path: Path) -> None:
    """A Dense module, no Normalize, and a default prompt before each text."""
    theirs = save_pooled(
        "bert", tmp_path, normalize=False, dense=(64, 24), prompts={"query": "find: ", "document": ""},
        default_prompt="query",
    )  # fmt: skip
    llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    (output,) = llm.embed("rain")
    ids = llm.get_tokenizer().encode("find: rain")
    torch.manual_seed(1)
    expected = torch.randn(24, 64) @ states_of(theirs, ids).mean(0)
    np.testing.assert_allclose(output.outputs.embedding, expected.numpy(), rtol=1e-4, atol=1e-4)
    (plain,) = llm.embed("rain", PoolingParams(prompt_name="document"))
    assert plain.prompt_token_ids == llm.get_tokenizer().encode("rain")
    with pytest.raises(InvalidRequestError, match="known: document, query"):
        llm.embed("rain", PoolingParams(prompt_name="title"))


def test_yes_and_no_are_labels(tmp_path: Path) -> None:
    """Qwen3-Reranker's way: the logits of two tokens behind a template."""
    theirs = save_model("qwen3", tmp_path)
    config = {"classifier_from_token": ["n", "y"], "score_template": "{query}|{document}>"}
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", pooler_config=config)
    outputs = llm.score("Is {document} wet?", ["rain", "bread"])
    no, yes = (llm.get_tokenizer().encode(token)[0] for token in "ny")
    for output, document in zip(outputs, ["rain", "bread"], strict=True):
        ids = llm.get_tokenizer().encode(f"Is {{document}} wet?|{document}>")
        assert output.prompt_token_ids == ids
        with torch.inference_mode():
            logits = theirs(torch.tensor([ids])).logits[0, -1]
        assert output.outputs.score == pytest.approx(float((logits[yes] - logits[no]).sigmoid()), abs=1e-5)


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_long_inputs(name: str, tmp_path: Path) -> None:
    save_pooled(name, tmp_path)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_model_len=50, max_num_batched_tokens=40)
    limit, hint = (40, "--max-num-batched-tokens") if name == "bert" else (50, "--max-model-len")
    assert len(llm.embed("x" * (limit - 2))[0].prompt_token_ids) == limit
    for text in ("x" * (limit - 1), "x" * 100_000):
        with pytest.raises(ContextLengthError, match=f"truncate_prompt_tokens to {limit} or less.*{hint}"):
            llm.embed(text)
    (cut,) = llm.embed("ab" + "x" * 90, PoolingParams(truncate_prompt_tokens=10))
    assert cut.prompt_token_ids == llm.get_tokenizer().encode("ab" + "x" * 6)  # special tokens stay at both ends
    assert len(llm.embed("x" * 90, PoolingParams(truncate_prompt_tokens=-1))[0].prompt_token_ids) == limit
    with pytest.raises(ContextLengthError, match="at most 524288 are tokenized at once"):
        llm.embed("x" * 600_000, PoolingParams(truncate_prompt_tokens=-1))


def test_token_states(tmp_path: Path, rng: random.Random) -> None:
    theirs = save_pooled("xlm-roberta", tmp_path, normalize=False)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu")
    prompt = prompts(rng, 2)[1]
    (output,) = llm.encode([prompt])
    np.testing.assert_allclose(output.outputs.data, states_of(theirs, prompt).numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", [{"type": "st.models.WordWeights", "path": ""}], "WordWeights is not known"),
        ("modules.json", {"type": 3}, "cannot be read"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling must be one of cls, lasttoken, mean"),
        ("config_sentence_transformers.json", [], "must hold a JSON object"),
    ],
)
def test_broken_files_are_named(file: str, value: Any, message: str, tmp_path: Path) -> None:
    save_pooled("bert", tmp_path)
    write(tmp_path / file, value)
    with pytest.raises(ConfigError, match=message):
        LLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_typ": "MEAN"}, "did you mean pooling_type"),
        ({"pooling_type": "MAX"}, "known: LAST, CLS, MEAN"),
        ({"classifier_from_token": ["yes"]}, "two or more"),
        ({"classifier_from_token": ["no", "n"]}, "single"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], message: str, tiny_folder: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(tiny_folder, device="cpu", pooler_config=config)
