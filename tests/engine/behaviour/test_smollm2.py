"""The real model of the first command gives transformers' answers on the dequantized file.

A longer run of 200 prompts: SPLITFUSE_TEST_PROMPTS=200 pytest tests/engine/behaviour/test_smollm2.py
"""

import itertools
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config.named_models import GET_SMOLLM2, default_model, named_model

pytestmark = pytest.mark.skipif(default_model() != "smollm2", reason=f"needs SmolLM2: {GET_SMOLLM2}")

NUM_PROMPTS = int(os.environ.get("SPLITFUSE_TEST_PROMPTS", "3"))
NUM_NEW = 24
_ASKED = (
    "What is/Explain/Write a poem about/Give three facts about/Tell a child of/Who invented/Why do people like/"
    "Translate into French:/List the parts of/The history of"
)
_OF = (
    "the sea/gravity/bread/the moon/a bicycle/2 + 2 = 4/Paris/photosynthesis/chess/rain/the number 1234/music/"
    "a compiler/winter/tea/the heart/money/email/an atom/football"
)
PROMPTS = [f"{asked} {of}" for asked, of in itertools.product(_ASKED.split("/"), _OF.split("/"))]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", dtype="float32", device="cpu", max_model_len=512)


def test_it_answers(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=16))
    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"


def test_it_splits_digits_and_keeps_the_metadatas_special_tokens(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert tokenizer.encode("<|im_start|>user\n") == [1, 4093, 198]


def dequantized(file: Path) -> PreTrainedModel:
    """Return transformers' own model of the file; its from_pretrained would need accelerate."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(file.parent, gguf_file=file.name))
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    assert model.load_state_dict(tensors, strict=False).missing_keys in ([], ["lm_head.weight"])  # a tied head
    model.tie_weights()
    return model.float().eval()


@pytest.mark.timeout(0)
def test_greedy_tokens_equal_those_of_transformers(llm: LLM) -> None:
    """Check in one pass that each token is the likeliest after its predecessors."""
    file = named_model("smollm2")
    assert file is not None
    expected = dequantized(file)
    step = max(1, len(PROMPTS) // NUM_PROMPTS)
    prompts = PROMPTS[::step][:NUM_PROMPTS]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True))
    for prompt, output in zip(prompts, outputs, strict=True):
        ids, new = output.prompt_token_ids, output.outputs[0].token_ids
        with torch.inference_mode():
            logits = expected(torch.tensor([ids + new])).logits[0]
        assert logits[len(ids) - 1 : -1].argmax(dim=-1).tolist() == new, prompt


def test_its_text_is_tokenized_as_by_transformers_but_for_digits(llm: LLM) -> None:
    """Compare texts without digits: transformers does not know how SmolLM2 splits digits."""
    file = named_model("smollm2")
    assert file is not None
    assert llm.tokenizer is not None
    expected = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in (Path(__file__).read_text(), "Café déjà vu 東京 🙂", "<|im_start|>system\nYou<|im_end|>", " a  b\n\n"):
        plain = "".join(char for char in text if not char.isdigit())
        assert llm.tokenizer.encode(plain) == expected.encode(plain)
