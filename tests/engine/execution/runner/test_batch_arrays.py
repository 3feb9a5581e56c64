"""Every token of a row stands in its place, whether the host knows it, only guesses it, or does not know it yet."""

import random
from array import array

import numpy as np
from scheduler_bench import request

from splitfuse.engine.core.batch import BatchRow
from splitfuse.engine.execution.runner.batch_arrays import lay_out, token_sources


def test_known_tokens_drafts_and_those_still_to_come() -> None:
    requests = [request(5, name=str(number), tokens=[10, 11, 12, 13, 14]) for number in range(5)]
    for number, each in enumerate(requests):
        each.block_table = array("i", [2 * number, 2 * number + 1])
    known, to_come, drafted, prompt, verified = requests
    rows = [
        BatchRow(known, 4, 1, True),
        BatchRow(to_come, 5, 1, True),
        BatchRow(drafted, 5, 1, True, draft_token_ids=(20,)),
        BatchRow(prompt, 1, 3, False),
        BatchRow(verified, 4, 3, True, num_drafts=2, draft_token_ids=(30, 31)),
    ]
    arrays, bounds = lay_out(rows, block_size=4)
    assert arrays["token_ids"].tolist() == [14, 0, 20, 11, 12, 13, 14, 30, 31]
    assert arrays["positions"].tolist() == [4, 5, 5, 1, 2, 3, 4, 5, 6]
    assert arrays["slot_mapping"].tolist() == [4, 13, 21, 25, 26, 27, 36, 37, 38]
    assert bounds == (3, 3, 7)
    assert token_sources(rows[:2], {to_come: 8}).tolist() == [-1, 8]


def random_row(choose: random.Random, number: int, num_tokens: int) -> BatchRow:
    """A row of tokens that are known, or drafts, or prompt tokens with logprobs."""
    known = choose.randint(max(num_tokens, 1), 40)
    made = request(known, name=str(number), tokens=[choose.randrange(1000) for _ in range(known)])
    made.block_table = array("i", [choose.randrange(100) for _ in range(13)])
    made.needs_prompt_logprobs = choose.random() < 0.3
    if num_tokens > 1 and choose.random() < 0.4:
        drafts = tuple(choose.choices(range(1000), k=num_tokens - 1))
        return BatchRow(made, known - 1, num_tokens, True, len(drafts), drafts)
    start = choose.randint(0, known - num_tokens)
    return BatchRow(made, start, num_tokens, start + num_tokens == known)


def test_a_batch_is_laid_out_token_by_token() -> None:
    choose = random.Random(0)
    for _ in range(200):
        lengths = sorted(choose.choice([1, 1, 1, choose.randint(2, 9)]) for _ in range(choose.randint(1, 9)))
        rows = [random_row(choose, number, length) for number, length in enumerate(lengths)]
        tokens = [(row, position) for row in rows for position in range(row.start, row.end)]
        at = {(id(row), position): index for index, (row, position) in enumerate(tokens)}
        arrays, bounds = lay_out(rows, block_size=4)
        known = {id(row): [*row.request.token_ids, *row.draft_token_ids] for row in rows}
        assert arrays["token_ids"].tolist() == [known[id(row)][position] for row, position in tokens]
        assert arrays["positions"].tolist() == [position for _, position in tokens]
        assert arrays["slot_mapping"].tolist() == [
            row.request.block_table[position // 4] * 4 + position % 4 for row, position in tokens
        ]
        assert arrays["query_start_loc"].tolist() == [sum(lengths[:count]) for count in range(len(rows) + 1)]
        assert arrays["seq_lens"].tolist() == [row.end for row in rows]
        assert arrays["block_tables"].tolist() == [row.request.block_table.tolist() for row in rows]
        sampled = [
            at[id(row), row.end - 1 - row.num_drafts + count]
            for row in rows
            if row.needs_sampling
            for count in range(row.num_drafts + 1)
        ]
        scored = [at[id(row), position - 1] for row in rows for position in row.prompt_logprob_positions]
        assert arrays["logits_indices"].tolist() == sampled + scored
        assert bounds == (lengths.count(1), max(lengths), max(row.end for row in rows))
        assert [array.dtype for array in arrays.values()] == [np.int64] * 3 + [np.int32] * 2 + [np.int64, np.int32]
