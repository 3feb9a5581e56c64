"""Grammars follow their request's tokens, and masks allow exactly the tokens that may come next."""

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from grammars import compiled
from llguidance import LLMatcher
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.execution.models.registry import parse_model_config, read_model_config
from splitfuse.engine.execution.sampling.sampler import add_masks
from splitfuse.engine.language.structured_output import grammar_maker
from splitfuse.engine.language.structured_output.compiler import GrammarCompiler
from splitfuse.engine.language.structured_output.grammar import Grammar, MaskMaker
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.engine.language.structured_output.to_llguidance import grammar_source
from splitfuse.engine.language.text.tokenizer import Tokenizer
from splitfuse.engine.serving.input_processor import InputProcessor

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def bits(mask: torch.Tensor) -> set[int]:
    words = mask.tolist()
    return {32 * word + bit for word, value in enumerate(words) for bit in range(32) if value >> bit & 1}


def masks_of(
    grammars: list[Grammar], drafts: list[list[int]] | None = None, maker: MaskMaker | None = None
) -> torch.Tensor:
    """Masks after each grammar's tokens, and after each of its drafts."""
    drafts = drafts or [[] for _ in grammars]
    masks = torch.zeros(sum(len(draft) + 1 for draft in drafts), -(-grammars[0].vocab_size // 32), dtype=torch.int32)
    (maker or grammars[0].new_mask_maker()).fill(grammars, drafts, masks)
    return masks


def allowed(grammar: Grammar, drafts: list[int] | None = None) -> list[set[int]]:
    masks = masks_of([grammar], None if drafts is None else [drafts])
    return [bits(mask) for mask in masks]


def walk(grammar: Grammar, rng: random.Random, *, max_tokens: int) -> Iterator[list[int]]:
    """Yield random outputs, token by token."""
    output: list[int] = []
    for _ in range(max_tokens):
        grammar.follow(output, num_prompt_tokens=0)
        if grammar.finish_reason:
            return
        output = [*output, rng.choice(sorted(allowed(grammar)[0] - {0}))]
        yield output


def test_a_mask_holds_exactly_the_tokens_that_fit(compiler: GrammarCompiler) -> None:
    """Compare with the parser alone, which tries each token of the vocabulary."""
    grammar = compiled(compiler, regex="(ab|[0-9]{2}|é).*").begin()
    for output in ([], [1557], [22]):
        grammar.follow(output, num_prompt_tokens=0)
        assert allowed(grammar) == [{i for i in range(4096) if grammar.matcher.validate_tokens([i])}]


@pytest.mark.parametrize("fields", [{"json": SCHEMA}, {"regex": "([a-z]{1,4} ?){3}"}, {"json_object": True}])
def test_a_grammar_that_tried_other_tokens_equals_a_fresh_one(
    compiler: GrammarCompiler, fields: dict[str, object]
) -> None:
    shared = compiled(compiler, **fields)
    rng = random.Random(1)
    tried = shared.begin()
    for output in walk(shared.begin(), rng, max_tokens=40):
        tried.follow([7, 7, *output], num_prompt_tokens=2)
        for _ in range(rng.randint(0, 3)):  # tried tokens that are not kept
            choices = sorted(allowed(tried)[0])
            if tried.finish_reason or not choices:
                break
            tried.advance(rng.choice(choices))
        if rng.random() < 0.5:
            tried.follow([7, 7, *output], num_prompt_tokens=2)
    tried.follow([7, 7, *output], num_prompt_tokens=2)
    fresh = shared.begin()
    fresh.follow(output, num_prompt_tokens=0)
    assert tried.error is None
    assert (allowed(tried), tried.is_accepting, tried.finish_reason) == (
        allowed(fresh),
        fresh.is_accepting,
        fresh.finish_reason,
    )


def test_masks_of_drafts_are_those_after_each_draft_token(compiler: GrammarCompiler) -> None:
    shared = compiled(compiler, json=SCHEMA)
    *_, output = walk(shared.begin(), random.Random(2), max_tokens=12)
    grammar = shared.begin()
    grammar.follow(output[:4], num_prompt_tokens=0)
    one_by_one = []
    for count in range(4, 13):
        step = shared.begin()
        step.follow(output[:count], num_prompt_tokens=0)
        one_by_one += allowed(step)
    assert allowed(grammar, output[4:12]) == one_by_one
    before = allowed(grammar)
    assert allowed(grammar, [output[4], 3, output[5]])[2:] == [set(), set()], "token 3 is special: nothing follows it"
    assert allowed(grammar) == before, "drafts leave the grammar as it was"


def test_rows_with_and_without_drafts_share_a_step(compiler: GrammarCompiler) -> None:
    shared = compiled(compiler, regex="[ab]{4}")
    grammars = [shared.begin() for _ in range(3)]
    for grammar, output in zip(grammars, ([], [1557], [70]), strict=True):
        grammar.follow(output, num_prompt_tokens=0)
    masks = masks_of(grammars, [[], [70, 71], []])
    assert len(masks) == 5
    rows = [bits(mask) for mask in masks]
    assert (rows[0], rows[1], rows[4]) == (*allowed(grammars[0]), *allowed(grammars[1]), *allowed(grammars[2]))


def test_the_mask_reaches_the_logits_of_its_rows_alone(compiler: GrammarCompiler) -> None:
    grammars = [compiled(compiler, regex="[0-9]").begin() for _ in range(3)]
    for grammar in grammars:
        grammar.follow([], num_prompt_tokens=0)
    for rows in ([1], [0, 1, 2]):
        logits = torch.randn(3, 4096)
        before = logits.clone()
        add_masks(logits, rows, masks_of(grammars[: len(rows)]))
        for row in range(3):
            kept = allowed(grammars[0])[0] if row in rows else set(range(4096))
            assert set(torch.isfinite(logits[row]).nonzero().flatten().tolist()) == kept
            assert torch.equal(logits[row, sorted(kept)], before[row, sorted(kept)])


def test_a_token_that_does_not_fit_is_an_error_of_this_grammar_alone(compiler: GrammarCompiler) -> None:
    shared = compiled(compiler, regex="[0-9]+")
    broken, sound = shared.begin(), shared.begin()
    broken.follow([1557], num_prompt_tokens=0)
    sound.follow([22], num_prompt_tokens=0)
    assert broken.error is not None
    assert "\n" not in broken.error
    masks = masks_of([broken, sound])
    assert not bits(masks[0])
    assert bits(masks[1])


def test_only_slow_grammars_fail_for_slow_masks(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = compiled(compiler, regex="[0-9]+")
    slow, fast = shared.begin(), shared.begin()
    for grammar in (slow, fast):
        grammar.follow([], num_prompt_tokens=0)
    maker = slow.new_mask_maker()
    maker._was_slow = True
    clock = iter([0.0, 1.0, 1.0, 1.001])
    monkeypatch.setattr("splitfuse.engine.language.structured_output.grammar.time.thread_time", lambda: next(clock))
    rows = masks_of([slow, fast], maker=maker)
    assert slow.error == "its grammar took 1000 ms for one token; at most 25 ms are given"
    assert fast.error is None
    assert (bits(rows[0]), bits(rows[1])) == (set(), allowed(fast)[0])


def test_the_first_masks_are_computed_before_a_request_may_run(compiler: GrammarCompiler) -> None:
    """Slow first masks cost the compiler's thread, never a step."""
    maker = compiler.prepare().result()
    threads: list[str] = []
    regex = "the first( masks)+"

    class Matcher:
        def __init__(self, *args: object, **options: object) -> None:
            self._matcher = LLMatcher(*args, **options)

        def __getattr__(self, name: str) -> object:
            return getattr(self._matcher, name)

        def compute_bitmask(self) -> bytes:
            threads.append(threading.current_thread().name)
            return self._matcher.compute_bitmask()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maker, "_new_matcher", Matcher)
        matcher = compiled(compiler, regex=regex).matcher
    assert len(threads) == grammar_maker._NUM_MASKS_AHEAD
    assert all(name.startswith("splitfuse-grammar") for name in threads)
    fresh = LLMatcher(maker._tokenizer, LLMatcher.grammar_from_regex(regex))
    assert matcher.compute_bitmask() == fresh.compute_bitmask(), "nothing is consumed"


def test_one_thread_at_a_time_translates_a_grammar(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once would take the GIL from the event loop and the step in turn."""
    first, others = threading.Event(), threading.Event()
    num_inside = 0

    def source(outputs: StructuredOutputs) -> str:
        nonlocal num_inside
        num_inside += 1
        first.set()
        others.wait()
        assert num_inside == 1
        num_inside -= 1
        return grammar_source(outputs)

    monkeypatch.setattr("splitfuse.engine.language.structured_output.grammar_maker.grammar_source", source)
    futures = [compiler.compile(StructuredOutputs(regex=f"translated {i}")) for i in range(4)]
    assert first.wait(60)
    others.set()
    for future in futures:
        future.result()


def sentencepiece_like() -> FastTokenizer:
    """Return a tokenizer like Llama 2's: ▁ for a space and before the text, bytes for unknown characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz0123456789{}[]:,\"'", "▁a", "▁{", '▁"', '":', '",', "▁ab", "ab"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "{"), ("▁", '"'), ('"', ":"), ('"', ","), ("▁a", "b"), ("a", "b")]
    tokenizer = FastTokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@pytest.mark.parametrize("padding", [0, 50])
def test_other_tokenizers_write_valid_json_too(kind: str, padding: int, tmp_path: Path) -> None:
    """Sample from logits wider than the tokenizer: no id without a token is sampled."""
    fast = byte_tokenizer() if kind == "byte-level" else sentencepiece_like()
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    size = tokenizer.vocab_size
    raw = json.loads((DEMO_FOLDER / "config.json").read_text()) | {"vocab_size": size + padding, "eos_token_id": 2}
    compiler = GrammarCompiler(tokenizer, parse_model_config(raw, generation={}))
    schema = SCHEMA | {"properties": {"name": {"enum": ["a b", "é", "ab"]}, "size": {"type": "boolean"}}}
    shared = compiled(compiler, json=schema)
    texts = set()
    for seed in range(30):
        for output in walk(shared.begin(), random.Random(seed), max_tokens=60):
            assert max(output) < size
        value = json.loads(tokenizer.decode(output))
        assert value["name"] in ("a b", "é", "ab")
        assert value["size"] in (True, False)
        texts.add(value["name"])
    assert len(texts) == 3


def test_an_unsupported_tokenizer_is_an_error_per_request(tmp_path: Path) -> None:
    fast = FastTokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    fast.save(str(tmp_path / "tokenizer.json"))
    compiler = GrammarCompiler(Tokenizer(tmp_path), read_model_config(DEMO_FOLDER))
    with pytest.raises(InvalidRequestError, match="cannot be used with this model: ") as info:
        compiler.compile(StructuredOutputs(json_object=True)).result()
    assert info.value.param == "structured_outputs"


async def test_preparing_for_an_unsupported_tokenizer_is_no_error(tmp_path: Path) -> None:
    FastTokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    tokenizer, config = Tokenizer(tmp_path), read_model_config(DEMO_FOLDER)
    compiler = GrammarCompiler(tokenizer, config)
    processor = InputProcessor(
        tokenizer=tokenizer, grammars=compiler, model_config=config, max_model_len=64, max_cache_tokens=64, seed=0
    )
    await processor.prepare()
    assert isinstance(compiler.prepare().exception(), InvalidRequestError)
