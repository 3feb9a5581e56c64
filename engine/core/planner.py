"""Planner: which tokens of which requests the next step computes, decided and not yet applied."""

from collections.abc import Container, Iterable, Mapping, Sequence

from .block_manager import BlockManager
from .fair_queue import TokenCounters
from .plan import Plan, Queues, StepBudget, Stop
from .policies import BATCHING_POLICIES, Source, num_interactive
from .preemption import PreemptionCosts
from .request import Request, Status
from .scheduler_config import SchedulerConfig

_NOTHING = Plan({}, {}, {}, {}, {})


class Planner:
    """Asks the block manager and the counters, and changes nothing."""

    def __init__(
        self, config: SchedulerConfig, blocks: BlockManager, costs: PreemptionCosts, counters: TokenCounters | None
    ) -> None:
        self._blocks = blocks
        self._costs = costs
        self._counters = counters
        self._max_num_seqs = config.step_limits.num_seqs
        self._policy = BATCHING_POLICIES[config.batching_policy]
        limit = config.long_prefill_token_threshold
        self._max_chunk = limit if limit and not self._policy.whole_prompts else 2**31
        # Admission leaves 1 % of the pool free, so that running requests do not need to preempt at once.
        self._watermark = blocks.device.num_blocks // 100

    def plan(
        self, queues: Queues, *, budget: int, drafts: Mapping[Request, int], background_budget: int | None = None
    ) -> Plan:
        """The policy's first round that gives any request tokens; changes nothing.

        Interactive requests are planned as if there were no others; background requests get what is left of the same
        round, at most `background_budget` tokens, or a round of their own if no interactive request can be computed.
        """
        interactive, background = queues.by_class()
        for own in (interactive, background):
            if not own.running and not own.waiting:
                continue
            running = _by_source(own.running)
            for sources in self._policy.rounds:
                room = StepBudget(queues, tokens=budget, blocks=self._blocks.device.num_free_blocks)
                self._plan_sources(room, sources, own, running)
                if not room.num_tokens and not room.preempted:
                    continue
                if own is interactive and (background.running or background.waiting):
                    self._plan_beside(room, sources, background, background_budget)
                if queues.in_flight and self._depends_on_results(room):
                    return _NOTHING
                if drafts and not room.preempted:
                    self._plan_drafts(room, drafts)
                return self._made(room, sources)
        return _NOTHING

    def _made(self, room: StepBudget, sources: tuple[Source, ...]) -> Plan:
        """The plan of a room that has been handed out."""
        if room.queues.waiting or room.preempted:
            for is_background, own in enumerate(room.queues.by_class()):
                self._add_stop(room, own.waiting, is_background=bool(is_background))
        return Plan(
            room.num_tokens,
            room.new_blocks,
            room.preempted,
            room.admitted,
            room.num_drafts,
            sources,
            tuple(room.stops),
            tuple(room.behind_parent),
            room.prices,
        )

    def _add_stop(self, room: StepBudget, waiting: Sequence[Request], *, is_background: bool) -> None:
        """Where nothing was tried for the waiting requests of a class, or they wait from now on: why."""
        preempted = [request for request in room.preempted if request.is_background == is_background]
        passed = sum(each.is_background == is_background for each in (*room.admitted, *room.behind_parent))
        has_stop = any(stop.request.is_background == is_background for stop in room.stops)
        if has_stop or (passed == len(waiting) and not preempted):
            return
        if is_background and len(room.admitted) < num_interactive(room.queues.waiting):
            room.stops.append(Stop(waiting[0] if waiting else preempted[0], "interactive"))
        elif room.preempted:
            room.stops.append(Stop(waiting[0] if waiting else preempted[0], "preemption"))
        else:
            room.stops.append(Stop(waiting[0], "policy"))

    def _plan_sources(
        self, room: StepBudget, sources: Iterable[Source], own: Queues, running: Mapping[Source, Sequence[Request]]
    ) -> None:
        """One class's share of a round."""
        for source in sources:
            if source is Source.DECODES and self._gives_all(room, running[source]):
                continue
            if source is not Source.WAITING:
                self._plan_running(room, running[source])
            elif not room.preempted and self._policy.admits(own.running):
                # Not after a preemption: an admission would take the room away from the preempted request.
                self._plan_waiting(room, own.waiting)

    def _plan_beside(self, room: StepBudget, sources: Iterable[Source], background: Queues, budget: int | None) -> None:
        """Background requests beside interactive ones that are planned already."""
        kept = max(0, room.tokens - budget) if room.num_tokens and budget is not None else 0  # for drafts
        room.tokens -= kept
        if len(room.admitted) < num_interactive(room.queues.waiting):
            background = background._replace(waiting=())  # an interactive request waits for the room
        self._plan_sources(room, sources, background, _by_source(background.running))
        room.tokens += kept

    def _depends_on_results(self, room: StepBudget) -> bool:
        """Whether this cannot be decided before the steps in flight have results.

        The blocks of a preempted request are in use and what it has computed is not known; nor is what a request gives
        that needs the host.
        """
        return bool(room.preempted) or Request.any_needs_host_sampling(room.num_tokens)

    def _num_tokens_for(self, num_wanted: int, room: StepBudget) -> int:
        """How many of its tokens a request gets; 0 if none can be given."""
        if self._policy.whole_prompts and num_wanted > room.tokens:
            return 0 if room.num_tokens else num_wanted  # longer than the budget: alone
        return min(num_wanted, self._max_chunk, room.tokens)

    def _gives_all(self, room: StepBudget, decodes: Sequence[Request]) -> bool:
        """Give each its token at once, as `_plan_running` would, if there is room for all. Whether there was."""
        block_size = self._blocks.device.block_size
        new_blocks = {each: each.num_computed_tokens // block_size + 1 - len(each.block_table) for each in decodes}
        num_blocks = sum(new_blocks.values())
        if room.preempted or len(decodes) > room.tokens or num_blocks > room.blocks:
            return False
        room.give_one_each(new_blocks, num_blocks)
        return True

    def _plan_running(self, room: StepBudget, requests: Iterable[Request]) -> None:
        blocks_to_add = self._blocks.blocks_to_add
        for request in requests:
            if request in room.preempted:
                continue
            num_wanted = request.num_uncomputed_tokens
            num_tokens = self._num_tokens_for(num_wanted, room)
            if num_tokens > 0:
                num_blocks = blocks_to_add(request, request.num_computed_tokens + num_tokens)
                while num_blocks > room.blocks and request not in room.preempted:
                    self._plan_preemption(room)
                if request in room.preempted:
                    continue
                room.give(request, num_tokens, num_blocks)
            if num_wanted > 1:
                promised = blocks_to_add(request, request.num_tokens) - room.new_blocks.get(request, 0)
                room.promised_blocks += promised

    def _plan_preemption(self, room: StepBudget) -> None:
        """Choose the next request to preempt: the latest, but none for the third time while another can be."""
        candidates = [request for request in room.queues.running if request not in room.preempted]
        most = self._costs.max_preemptions
        preferred = [request for request in candidates[1:] if request.is_background or request.num_preemptions < most]
        victim = (preferred or candidates)[-1]
        can_swap = self._blocks.can_swap_out(victim, room.promised_host_blocks)
        is_swapped = can_swap and self._costs.prefers_swap(victim, self._blocks.device.block_size)
        if is_swapped:
            room.promised_host_blocks += self._blocks.device.num_blocks_for(victim.num_computed_tokens)
        room.preempted[victim] = is_swapped
        room.prices[victim] = self._costs.prices(victim, self._blocks.device.block_size)
        room.take_back(victim, self._blocks.num_freed_by(victim, room.preempted))

    def _plan_waiting(self, room: StepBudget, waiting: Sequence[Request]) -> None:
        admitted, taken = room.admitted, room.shared_blocks
        blocks_for = self._blocks.device.num_blocks_for
        running = room.queues.running
        for request in waiting if self._counters is None else self._counters.order(waiting):
            if room.tokens <= 0:
                room.stops.append(Stop(request, "budget"))
                break
            if len(running) + len(admitted) >= self._max_num_seqs:
                room.stops.append(Stop(request, "sequences"))
                self._make_room(room, request, num_blocks=0)
                break
            if self._waits_for_its_parent(room, request, admitted):
                room.behind_parent.append(request)
                continue
            prefix = self._blocks.find_prefix(request)
            num_computed = max(prefix.num_tokens, request.num_computed_tokens)
            num_tokens = self._num_tokens_for(request.num_tokens - num_computed, room)
            if num_tokens <= 0:
                room.stops.append(Stop(request, "budget"))
                break
            newly_taken = self._blocks.taken_by(prefix) - taken
            num_taken = len(newly_taken) - len(prefix.blocks)
            whole = blocks_for(request.num_tokens) + num_taken
            watermark = self._watermark if running or admitted else 0
            num_missing = whole + watermark - (room.blocks - room.promised_blocks)
            if num_missing > 0:
                room.stops.append(Stop(request, "blocks", num_missing))
                self._make_room(room, request, num_blocks=whole + watermark)
                break
            now = blocks_for(num_computed + num_tokens) + num_taken
            room.give(request, num_tokens, now)
            room.promised_blocks += whole - now
            taken |= newly_taken
            admitted[request] = prefix

    def _make_room(self, room: StepBudget, request: Request, *, num_blocks: int) -> None:
        """Preempt background requests, so that this interactive one is admitted in the next step: then it is known
        what their blocks were shared with.
        """
        running = room.queues.running
        num_background = 0 if request.is_background else len(running) - num_interactive(running)
        while len(room.preempted) < num_background:
            self._plan_preemption(room)
            if num_blocks <= room.blocks - room.promised_blocks:
                break

    def _plan_drafts(self, room: StepBudget, drafts: Mapping[Request, int]) -> None:
        """Tokens and blocks that are left, to requests that decode in this step. No request is preempted for drafts."""
        block_size = self._blocks.device.block_size
        for request, num_wanted in drafts.items():
            if room.num_tokens.get(request) != 1 or request.num_uncomputed_tokens != 1 or request.is_background:
                continue
            num_blocks = room.new_blocks[request]
            num_spare = max(0, room.blocks - room.promised_blocks - self._watermark)
            most_blocks = len(request.block_table) + num_blocks + num_spare
            # One more token comes after the last draft.
            fitting = min(request.max_num_tokens - 1, most_blocks * block_size) - request.num_tokens
            num_drafts = min(num_wanted, room.tokens, fitting)
            if num_drafts > 0:
                num_more = self._blocks.blocks_to_add(request, request.num_tokens + num_drafts) - num_blocks
                room.give_drafts(request, num_drafts, num_more)

    def _waits_for_its_parent(self, room: StepBudget, request: Request, admitted: Container[Request]) -> bool:
        """Whether the prompt that it shares is being computed: only what a step has computed well may be shared."""
        parent = request.parent
        if parent is None or request.num_output_tokens:
            return False
        if parent.status is not Status.RUNNING and parent not in admitted:
            return False
        rows = (row for batch in room.queues.in_flight for row in batch.rows if row.request is parent)
        num_computed = min((row.start for row in rows), default=parent.num_computed_tokens)
        return num_computed < request.num_prompt_tokens


def _by_source(running: Iterable[Request]) -> dict[Source, list[Request]]:
    decodes: list[Request] = []
    chunks: list[Request] = []
    for request in running:
        num_uncomputed = len(request.token_ids) + request.num_output_placeholders - request.num_computed_tokens
        (decodes if num_uncomputed == 1 else chunks).append(request)
    return {Source.DECODES: decodes, Source.CHUNKS: chunks}
