"""Bugs in the budget of drafts, and in the number of drafted tokens that are kept."""

from typing import Any

from planted_bug import Bugs, Method, plant
from world_settings import WorldSettings

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.planner import Planner
from splitfuse.engine.core.scheduler import Scheduler

BUGS: Bugs = {}


def has_drafts(settings: WorldSettings) -> bool:
    return settings.max_drafts > 1


@plant(BUGS, Planner, "_plan_drafts", where=has_drafts)
def drafts_have_a_budget_of_their_own(right: Method, self: Any, budget: Any, drafts: Any) -> None:
    budget.tokens += 3
    right(self, budget, drafts)


@plant(BUGS, Planner, "_plan_drafts", where=has_drafts)
def drafts_go_beyond_the_last_token(right: Method, self: Any, budget: Any, drafts: Any) -> None:
    for request in drafts:
        request.max_num_tokens += 1
    right(self, budget, drafts)
    for request in drafts:
        request.max_num_tokens -= 1


@plant(BUGS, Planner, "_plan_drafts", where=lambda settings: has_drafts(settings) and settings.num_blocks >= 100)
def drafts_take_promised_blocks(right: Method, self: Any, budget: Any, drafts: Any) -> None:
    budget.promised_blocks, self._watermark, kept = 0, 0, self._watermark
    right(self, budget, drafts)
    self._watermark = kept


@plant(BUGS, BlockManager, "free_after_tokens", where=has_drafts)
def blocks_of_wrong_drafts_are_kept(right: Method, self: Any, request: Any) -> Any:
    return None


@plant(BUGS, BlockManager, "free_after_tokens", where=has_drafts)
def too_many_blocks_are_freed(right: Method, self: Any, request: Any) -> None:
    right(self, request)
    self.device.free(request.block_table[-1:])
    del request.block_table[-1:]


@plant(BUGS, Scheduler, "update", where=has_drafts)
def wrong_drafts_count_as_computed(right: Method, self: Any, batch: Any, results: Any, now: float) -> Any:
    self._in_flight[0] = Batch(batch.step, [row._replace(num_drafts=0) for row in batch.rows])
    return right(self, self._in_flight[0], results, now)


@plant(BUGS, Scheduler, "drop_last", where=has_drafts)
def tokens_after_a_stop_string_are_kept(right: Method, self: Any, request: Any, num_tokens: Any) -> Any:
    return None


@plant(BUGS, Scheduler, "_take", where=has_drafts)
def tokens_after_an_end_token_are_kept(right: Method, self: Any, request: Any, output: Any, now: float) -> Any:
    progress = right(self, request, output, now)
    request.token_ids.extend(output.token_ids[len(progress.output.token_ids) :])
    return progress._replace(output=output)
