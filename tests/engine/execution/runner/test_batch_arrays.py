"""Every token of a row stands in its place, whether the host knows it, only guesses it, or does not know it yet."""

import random
from array import array

import torch
from scheduler_bench import request

from splitfuse.engine.core.batch import Batch, BatchRow
from splitfuse.engine.execution.runner.batch_arrays import as_inputs, build_inputs, input_arrays, unknown_sources


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
    arrays, bounds = input_arrays(Batch(0, rows), block_size=4)
    assert arrays["token_ids"].tolist() == [14, 0, 20, 11, 12, 13, 14, 30, 31]
    assert arrays["positions"].tolist() == [4, 5, 5, 1, 2, 3, 4, 5, 6]
    assert arrays["slot_mapping"].tolist() == [4, 13, 21, 25, 26, 27, 36, 37, 38]
    assert bounds == (3, 3, 7)
    assert unknown_sources(Batch(0, rows[:2]), {to_come: 8}).tolist() == [-1, 8]


def test_rows_of_one_token_are_laid_out_like_any_others() -> None:
    choose, rows = random.Random(0), []
    for number in range(30):
        tokens = [choose.randrange(1000) for _ in range(choose.randint(1, 40))]
        each = request(len(tokens), name=str(number), tokens=tokens)
        each.block_table = array("i", [choose.randrange(100) for _ in range(len(tokens) // 4 + choose.randint(1, 3))])
        start, drafts = choose.choice([(len(tokens) - 1, ()), (choose.randrange(len(tokens)), ()), (len(tokens), (7,))])
        rows.append(BatchRow(each, start, 1, start >= len(tokens) - 1, draft_token_ids=drafts))
    for count in (1, 2, 30):
        batch = Batch(0, rows[:count])
        arrays, bounds = input_arrays(batch, block_size=4)
        expected = as_inputs({name: torch.from_numpy(array) for name, array in arrays.items()}, bounds)
        torch.testing.assert_close(
            build_inputs(batch, block_size=4, device=torch.device("cpu")), expected, atol=0, rtol=0
        )
