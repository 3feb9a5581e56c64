"""Middles by a real tokenizer with the tokens of Qwen2.5-Coder or StarCoder2, equal to transformers' tokens."""

import pytest
from serving import ready_client
from tiny_models import byte_tokenizer, greedy, save_model
from tokenizers import AddedToken, Tokenizer

from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

# Name, if the tokens are special like in the published tokenizer, the tokens in the order of their ids.
TOKENIZERS = {
    "qwen2.5-coder": (False, "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"),
    "starcoder2": (True, "<fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <repo_name> <file_sep>"),
}
PREFIX, SUFFIX, BEGINNING = "def add(a, b):\n    ", "\n\nprint(add(1, 2)) # π", "return"
EXTRA = [{"filename": "sub.py", "text": "def sub(a, b):\n    return a - b"}]


def tokenizer_with(tokens: list[str], *, special: bool) -> Tokenizer:
    """Return a tokenizer of bytes whose free ids have these names."""
    names = dict(zip((f"<s{i}>" for i in range(len(tokens))), tokens, strict=True))
    text = byte_tokenizer().to_str()
    for free, name in names.items():
        text = text.replace(f'"{free}"', f'"{name}"')
    tokenizer = Tokenizer.from_str(text)
    tokenizer.add_tokens([AddedToken(name, special=special) for name in tokens])
    return tokenizer


@pytest.mark.parametrize("name", TOKENIZERS)
async def test_the_middle_equals_that_of_the_written_prompt(tmp_path, name):
    special, names = TOKENIZERS[name]
    before, middle, suffix, _, repository, file = tokens = names.split()
    model = save_model("qwen2", tmp_path)
    tokenizer = tokenizer_with(tokens, special=special)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    app = build_app(Settings(model=str(tmp_path), dtype="float32", num_kv_blocks=200))

    def written(head: str = "", tail: str = "") -> list[int]:
        ids = tokenizer.encode(f"{head}{before}{PREFIX}{suffix}{SUFFIX}{middle}{tail}").ids
        assert len([token_id for token_id in ids if token_id == tokenizer.token_to_id(before)]) == 1
        return greedy(model, ids, 6)

    async with ready_client(app) as client:
        options = {"temperature": 0, "ignore_eos": True}

        async def filled(**fields: object) -> list[int]:
            body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 6, "return_tokens": True, **fields}
            response = await client.post("/infill", json=body | options)
            assert response.status_code == 200, response.text
            return list(response.json()["tokens"])

        assert await filled() == written()
        assert await filled(prompt=BEGINNING) == written(tail=BEGINNING)
        extra = EXTRA[0]
        head = f"{repository}myproject\n{file}{extra['filename']}\n{extra['text']}\n{file}filename\n"
        assert await filled(input_extra=EXTRA) == written(head)
        body = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 6, "return_token_ids": True}
        answer = (await client.post("/v1/completions", json=body | options)).json()["choices"][0]
        assert answer["token_ids"] == written()
