"""Planner: decides which tokens of which requests the next step computes. The scheduler applies the decision."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .block_manager import BlockManager
from .fair_queue import TokenCounters
from .plan import AdmissionBlock, Pace, Plan, Queues, StepBudget
from .policies import BATCHING_POLICIES, Source, by_source, num_interactive
from .ports import SchedulerConfig
from .preemption_costs import PreemptionCosts
from .request import Request, Status


class Planner:
    """Decision maker, which asks the block manager and the counters and changes neither."""

    def __init__(
        self, config: SchedulerConfig, blocks: BlockManager, costs: PreemptionCosts, counters: TokenCounters | None
    ) -> None:
        self._blocks = blocks
        self._costs = costs
        self._counters = counters
        self._max_num_seqs = config.max_num_seqs
        self._max_seqs_per_key = config.max_seqs_per_key or math.inf
        self._limits_tenants = counters is not None or config.max_seqs_per_key is not None
        self._policy = BATCHING_POLICIES[config.batching_policy]
        self._max_chunk = 2**31 if self._policy.whole_prompts else config.long_prefill_token_threshold or 2**31
        self._max_drafts = min([companion.max_drafts for companion in blocks.companions], default=2**31)
        # Admission leaves 1 % of the pool free, so that running requests do not need to preempt at once.
        self._watermark = blocks.device.num_blocks // 100

    def plan(self, queues: Queues, *, max_tokens: int, drafts: Mapping[Request, int], pace: Pace) -> Plan:
        """Return the plan of the policy's first round that gives any request tokens; an empty plan if none does.

        Interactive requests are planned as if there were no others. Background requests get the rest of the same
        round, at most `pace.background_budget` tokens, or a round of their own if no interactive one can be computed.
        """
        interactive, background = queues.by_class()
        for group in (interactive, background):
            if not group.running and not group.waiting:
                continue
            running = by_source(group.running)
            for sources in self._policy.rounds:
                plan = Plan(sources)
                budget = StepBudget(queues, plan, max_tokens, self._blocks.device.num_free_blocks, pace)
                self._plan_sources(budget, group, running)
                if not plan.num_tokens and not plan.preempted:
                    continue
                if group is interactive and (background.running or background.waiting):
                    self._plan_beside(budget, background)
                if queues.in_flight and self._depends_on_results(plan):
                    return Plan()
                if drafts and not plan.preempted:
                    self._plan_drafts(budget, drafts)
                plan.add_stops(queues)
                return plan
        return Plan()

    def _plan_sources(self, budget: StepBudget, group: Queues, running: Mapping[Source, Sequence[Request]]) -> None:
        """Plan one class of requests in a round."""
        for source in budget.plan.sources:
            if source is Source.DECODES and self._gives_all(budget, running[source]):
                continue
            if source is Source.CHUNKS and group.running and not group.running[0].is_background:
                self._plan_ahead(budget, running[source])
            if source is not Source.WAITING:
                self._plan_running(budget, budget.pace.sorted(running[source]))
            elif not budget.plan.preempted and self._policy.admits(group.running):
                # Not after a preemption: an admission would take the blocks that the preempted request needs.
                self._plan_waiting(budget, budget.pace.sorted(group.waiting, without=budget.plan.admitted))

    def _plan_ahead(self, budget: StepBudget, begun: Sequence[Request]) -> None:
        """Admit urgent waiting requests before started prompts, and leave these the blocks that they were promised."""
        plan, waiting = budget.plan, [] if budget.plan.preempted else budget.pace.ahead
        num_promised = sum(self._blocks.blocks_to_add(request, request.num_tokens) for request in begun)
        self._plan_waiting(budget, waiting if begun else [], num_promised=num_promised)
        if not plan.preempted:  # these requests are looked at again
            plan.stops, plan.over_limit, plan.behind_parent = [], [], []

    def _plan_beside(self, budget: StepBudget, background: Queues) -> None:
        """Plan background requests beside interactive ones, which are planned already."""
        num_reserved, max_tokens = 0, budget.pace.background_budget  # reserved for drafts
        if budget.plan.num_tokens and max_tokens is not None:
            num_reserved = max(0, budget.tokens - max_tokens)
        budget.tokens -= num_reserved
        if len(budget.plan.admitted) + len(budget.plan.over_limit) < num_interactive(budget.queues.waiting):
            background = background._replace(waiting=())  # the blocks are for an interactive request that waits
        self._plan_sources(budget, background, by_source(background.running))
        budget.tokens += num_reserved

    def _depends_on_results(self, plan: Plan) -> bool:
        """True if the plan cannot be decided before the steps in flight have results.

        A preempted request's blocks are in use, and which of its tokens are computed is not known yet. The output of a
        request that needs the host is not known either.
        """
        return bool(plan.preempted) or Request.any_needs_host_sampling(plan.num_tokens)

    def _num_tokens_for(self, num_wanted: int, budget: StepBudget) -> int:
        """Return how many of its `num_wanted` tokens a request gets; 0 if none can be given."""
        if self._policy.whole_prompts and num_wanted > budget.tokens:
            return 0 if budget.plan.num_tokens else num_wanted  # longer than the budget: alone
        return min(num_wanted, self._max_chunk, budget.tokens)

    def _gives_all(self, budget: StepBudget, decodes: Sequence[Request]) -> bool:
        """Give every decode its token at once, as `_plan_running` would, if there is enough for all. True if so."""
        block_size = self._blocks.device.block_size
        new_blocks = {r: r.num_computed_tokens // block_size + 1 - len(r.block_table) for r in decodes}
        num_blocks = sum(new_blocks.values())
        if budget.plan.preempted or len(decodes) > budget.tokens or num_blocks > budget.blocks:
            return False
        budget.give_one_each(new_blocks, num_blocks)
        return True

    def _plan_running(self, budget: StepBudget, requests: Iterable[Request]) -> None:
        blocks_to_add, preempted = self._blocks.blocks_to_add, budget.plan.preempted
        for request in requests:
            if request in preempted:
                continue
            num_wanted = request.num_uncomputed_tokens
            num_tokens = self._num_tokens_for(num_wanted, budget)
            if num_tokens > 0:
                num_blocks = blocks_to_add(request, request.num_computed_tokens + num_tokens)
                while num_blocks > budget.blocks and request not in preempted:
                    self._plan_preemption(budget)
                if request in preempted:
                    continue
                budget.give(request, num_tokens, num_blocks)
            if num_wanted > 1:
                num_given = budget.plan.new_blocks.get(request, 0)
                budget.promised_blocks += blocks_to_add(request, request.num_tokens) - num_given

    def _plan_preemption(self, budget: StepBudget) -> None:
        """Choose the next request to preempt: the latest arrival, sparing requests that were preempted twice already.

        With the policy "fair" the latest of the tenant with the largest share.
        """
        candidates = [request for request in budget.queues.running if request not in budget.plan.preempted]
        most = self._costs.max_preemptions
        preferred = [request for request in candidates[1:] if request.is_background or request.num_preemptions < most]
        if self._counters is not None and preferred and not preferred[-1].is_background:
            preferred = self._counters.of_largest(preferred, candidates)
        self._preempt(budget, (preferred or candidates)[-1])

    def _preempt(self, budget: StepBudget, victim: Request) -> None:
        plan, block_size = budget.plan, self._blocks.device.block_size
        can_swap = self._blocks.can_swap_out(victim, [other for other, is_out in plan.preempted.items() if is_out])
        plan.preempted[victim] = can_swap and self._costs.prefers_swap(victim, block_size)
        plan.prices[victim] = self._costs.prices(victim, block_size)
        budget.take_back(victim, self._blocks.num_freed_by(victim, plan.preempted))

    def _plan_waiting(self, budget: StepBudget, waiting: Sequence[Request], num_promised: int = 0) -> None:
        admitted, stops, shared = budget.plan.admitted, budget.plan.stops, budget.shared_blocks
        blocks_for = self._blocks.device.num_blocks_for
        running = budget.queues.running
        num_running = Counter(r.tenant for r in (*running, *admitted)) if self._limits_tenants else Counter[str]()
        for request in waiting if self._counters is None else self._counters.order(waiting):
            if self._limits_tenants and num_running[request.tenant] >= self._most_running(request.tenant):
                budget.plan.over_limit.append(request)
                continue
            if budget.tokens <= 0:
                stops.append(AdmissionBlock(request, "budget"))
                break
            if len(running) + len(admitted) >= self._max_num_seqs:
                stops.append(AdmissionBlock(request, "sequences"))
                self._make_way(budget, request, num_blocks=0)
                break
            if self._waits_for_its_parent(budget, request):
                budget.plan.behind_parent.append(request)
                continue
            prefix = self._blocks.find_prefix(request)
            num_computed = max(prefix.num_tokens, request.num_computed_tokens)
            num_tokens = self._num_tokens_for(request.num_tokens - num_computed, budget)
            if num_tokens <= 0:
                stops.append(AdmissionBlock(request, "budget"))
                break
            newly_shared = self._blocks.taken_by(prefix) - shared
            num_shared = len(newly_shared) - len(prefix.blocks)
            whole = blocks_for(request.num_tokens) + num_shared
            watermark = self._watermark if running or admitted else 0
            num_missing = whole + watermark - (budget.blocks - budget.promised_blocks - num_promised)
            if num_missing > 0:
                stops.append(AdmissionBlock(request, "blocks", num_missing))
                self._make_way(budget, request, num_blocks=whole + watermark)
                break
            now = blocks_for(num_computed + num_tokens) + num_shared
            budget.give(request, num_tokens, now)
            budget.promised_blocks += whole - now
            shared |= newly_shared
            admitted[request] = prefix
            num_running[request.tenant] += 1
        else:
            stops += [AdmissionBlock(request, "tenant") for request in budget.plan.over_limit[:1]]

    def _most_running(self, tenant: str) -> float:
        most = math.inf if self._counters is None else self._counters.most_running(tenant)
        return min(most, self._max_seqs_per_key)

    def _make_way(self, budget: StepBudget, request: Request, *, num_blocks: int) -> None:
        """Preempt background requests until `num_blocks` are free for an interactive request, then larger tenants'.

        The request is admitted in the next step, when it is known which of the victims' blocks others share.
        """
        running = budget.queues.running
        num_background = 0 if request.is_background else len(running) - num_interactive(running)
        while len(budget.plan.preempted) < num_background:
            self._plan_preemption(budget)
            if num_blocks <= budget.blocks - budget.promised_blocks:
                return
        if self._counters is None or request.is_background or budget.plan.admitted or budget.plan.preempted:
            return
        num_missing = num_blocks - budget.blocks + budget.promised_blocks
        victims = self._counters.victims(request, running, self._blocks, num_missing=num_missing)
        for victim in victims:
            self._preempt(budget, victim)
        budget.plan.gave_way += victims

    def _plan_drafts(self, budget: StepBudget, drafts: Mapping[Request, int]) -> None:
        """Give the tokens and blocks that are left to requests that decode. No request is preempted for drafts."""
        plan, block_size = budget.plan, self._blocks.device.block_size
        for request, num_wanted in drafts.items():
            if plan.num_tokens.get(request) != 1 or request.num_uncomputed_tokens != 1 or request.is_background:
                continue
            num_blocks = plan.new_blocks[request]
            num_spare = max(0, budget.blocks - budget.promised_blocks - self._watermark)
            most_blocks = len(request.block_table) + num_blocks + num_spare
            # One more token comes after the last draft.
            fitting = min(request.max_num_tokens - 1, most_blocks * block_size) - request.num_tokens
            num_drafts = min(num_wanted, budget.tokens, fitting, self._max_drafts)
            if num_drafts > 0:
                num_more = self._blocks.blocks_to_add(request, request.num_tokens + num_drafts) - num_blocks
                budget.give_drafts(request, num_drafts, num_more)

    def _waits_for_its_parent(self, budget: StepBudget, request: Request) -> bool:
        """True if the prompt that it shares is being computed: only tokens of a step that succeeded may be shared."""
        parent = request.parent
        if parent is None or request.num_output_tokens:
            return False
        if parent.status is not Status.RUNNING and parent not in budget.plan.admitted:
            return False
        rows = (row for batch in budget.queues.in_flight for row in batch.rows if row.request is parent)
        num_computed = min((row.start for row in rows), default=parent.num_computed_tokens)
        return num_computed < request.num_prompt_tokens
