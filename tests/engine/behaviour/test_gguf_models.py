"""A GGUF file's answers equal those of its original model in transformers, in float32, token by token."""

import random
from itertools import product
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf_files import GGUF_HYBRIDS, GGUF_MODELS, TYPES, write_gguf, write_model, write_types
from tiny_models import VARIANTS, VOCAB_SIZE, greedy, make_model, save_model
from transformers import PreTrainedModel

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.formats.gguf.config_fields import read_config_fields

NUM_NEW = 24
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)


WITHOUT_WINDOW = (2, 9)  # within a window that a GGUF leaves out


def prompts_for(name: str) -> list[list[int]]:
    rng, model = random.Random(name), name.removesuffix(".gguf")
    # Variants: beyond their window, no more.
    lengths = (
        WITHOUT_WINDOW
        if model in ("mixtral-window", "dots1", "starcoder2-window", "qwen2-moe")
        else (2, 40)
        if model in VARIANTS
        else (1, 2, 17, 40, 100)
    )
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def assert_equal_answers(path: Path, model: PreTrainedModel) -> None:
    prompts = prompts_for(path.name)
    outputs = LLM(str(path), dtype="float32", device="cpu").generate(prompts, PARAMS)
    for prompt, output in zip(prompts, outputs, strict=True):
        token_ids = output.outputs[0].token_ids
        assert token_ids == greedy(model, prompt, NUM_NEW, guess=token_ids)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*GGUF_MODELS, *GGUF_HYBRIDS])
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    assert_equal_answers(path, write_gguf(path, name))


# Architectures that are another family's layers under a name of their own.
OTHER_NAMES = {
    "internlm2": "llama-mha", "minicpm": "granite", "qwen2vl": "qwen2", "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3-moe", "xverse": "llama-gqa-tied",
}  # fmt: skip


@pytest.mark.parametrize("architecture", OTHER_NAMES)
def test_other_names_of_a_family_give_its_tokens(architecture: str, tmp_path: Path) -> None:
    model, fields = make_model(OTHER_NAMES[architecture]), OTHER_NAMES[architecture]
    if architecture == "minicpm":
        fields = "minicpm"
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        model.config.attention_multiplier = head_dim**-0.5
        for layer in model.model.layers:
            layer.self_attn.scaling = model.config.attention_multiplier
    path = tmp_path / f"{architecture}.gguf"
    write_model(path, model, fields, kind=Type.F32, named=architecture)
    assert_equal_answers(path, model)


# Cases: rows of q and k in another order, gpt2's transposed matrices, permuted biases, neighbours that rotate.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(["llama-yarn", "gpt2", "qwen3-moe"], [Type.Q4_1, Type.Q8_0, Type.BF16]),
        *product(["glm4", "granite-moe", "deepseek-v3", "gemma4-moe"], [Type.Q8_0]),
        *product(["gpt-oss"], [Type.Q8_0, Type.MXFP4]),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_quantized_ones_equal_what_their_values_are(name: str, kind: Type, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    assert_equal_answers(path, write_gguf(path, name, kind=kind, alignment=64))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*TYPES, "mix"])
def test_every_type_is_served_as_its_values_are(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    model = write_types(path, TYPES if name == "mix" else [name])
    if name == "IQ2_XS":
        assert "2-bit GGUF (IQ2_XS, 3.56 bits in a CPU's memory)" in read_model_config(path).description
    assert_equal_answers(path, model)


def test_text_goes_in_and_out_by_the_files_own_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    write_gguf(path, "llama-mha")
    output = LLM(str(tmp_path), dtype="float32").generate("the end", PARAMS)[0]  # a folder with a single file
    assert len(output.prompt_token_ids) == 6  # "th" is one token
    assert output.outputs[0].text


@pytest.mark.parametrize("given", ["first", "second", "folder"])
def test_a_split_file_opens_by_any_part_or_its_folder(given: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf", "llama3-rope", tensors_of_a_part=7)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")  # lies beside models with images
    prompt = prompts_for("llama3-rope")[-1]
    path = {"first": parts[0], "second": parts[1], "folder": tmp_path}[given]
    [output] = LLM(str(path), dtype="float32").generate([prompt], PARAMS)
    assert output.outputs[0].token_ids == greedy(model, prompt, NUM_NEW)


def test_an_encoder_of_images_beside_a_model_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama-mha")
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    description = read_config_fields(tmp_path / "m.gguf")["description"]
    assert description.endswith("parameters; mmproj-F16.gguf stays unread: images are not served")


def test_a_part_that_is_missing_or_renamed_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama-mha", tensors_of_a_part=7)
    parts = sorted(tmp_path.glob("*.gguf"))
    parts[1].rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=rf"is one of {len(parts)} parts, and {parts[1].name} is missing; fetch it"):
        LLM(str(parts[0]))
    parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ConfigError, match=rf"one of {len(parts)} parts of a split GGUF; rename"):
        LLM(str(tmp_path / "renamed.gguf"))


@pytest.mark.parametrize(
    ("architecture", "type_", "message"),
    [
        ("clip", "mmproj", "is the encoder of a model's images"),
        ("llama", "mmproj", "is the encoder of a model's images"),
        ("llama", "adapter", r"is an adapter \(LoRA\), not a model; serve its base model with --enable-lora"),
        ("controlvector", None, "is a control vector"),
        ("imatrix", "imatrix", "holds the importance of a model's weights"),
    ],
)
def test_a_file_that_is_no_model_is_told_apart(
    architecture: str, type_: str | None, message: str, tmp_path: Path
) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", architecture)
    if type_ is not None:
        writer.add_type(type_)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.close):
        write()
    with pytest.raises(ConfigError, match=message):
        LLM(str(tmp_path / "m.gguf"))


def test_a_file_without_a_suffix_opens_and_an_old_one_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama-mha")
    (tmp_path / "m.gguf").rename(tmp_path / "model")
    assert LLM(str(tmp_path / "model"), dtype="float32").generate("th", PARAMS)[0].outputs[0].token_ids
    (tmp_path / "old.gguf").write_bytes(b"tjgg\x03\0\0\0" + bytes(100))
    with pytest.raises(ConfigError, match="ggjt is a format of before August 2023"):
        LLM(str(tmp_path / "old.gguf"))


def test_another_tokenizer_serves_a_file_whose_own_is_not_known(tmp_path: Path) -> None:
    path, words = tmp_path / "llama.gguf", tmp_path / "words"
    write_gguf(path, "llama-mha")
    save_model("llama-mha", words)
    path.write_bytes(path.read_bytes().replace(b"gpt-2", b"new-1"))
    with pytest.raises(ConfigError, match=r"pre 'new-1' is not known; .*--tokenizer FOLDER"):
        LLM(str(path), dtype="float32")
    output = LLM(str(path), tokenizer=str(words), dtype="float32").generate("the end", PARAMS)[0]
    assert len(output.prompt_token_ids) == 7  # no merges in the folder
    assert output.outputs[0].text


def test_a_draft_model_may_be_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    write_gguf(path, "llama-mha")
    [prompt] = prompts_for("one")[-1:]
    alone = LLM(str(path), dtype="float32").generate(prompt, PARAMS)[0].outputs[0].token_ids
    drafting = LLM(str(path), dtype="float32", speculative_config={"model": str(path)})
    assert drafting.generate(prompt, PARAMS)[0].outputs[0].token_ids == alone


def test_a_file_of_another_shape_than_its_metadata_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    write_gguf(path, "llama-mha")
    bytes_ = path.read_bytes()
    key = b"llama.feed_forward_length\x04\x00\x00\x00"
    at = bytes_.index(key) + len(key)
    path.write_bytes(bytes_[:at] + (95).to_bytes(4, "little") + bytes_[at + 4 :])
    with pytest.raises(ConfigError, match=r"blk\.0\.ffn_gate\.weight has shape \[96, 64\].*\[95, 64\]"):
        LLM(str(path))
