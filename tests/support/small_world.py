"""SmallWorld: the core's real classes over a null model, for a few requests and blocks, driven action by action.

An action is a line such as "arrive a", "schedule", "finish fail a0" or "abort a0"; `actions` lists what can happen now,
the undisturbed course first. `act` lets it happen and `check` proves that nothing is wrong. Between the actions of a
step (schedule, then finish; with two steps in flight schedule, run, update) everything else may happen.
"""

from collections.abc import Sequence
from typing import Any

from beside_core import PlainOutputs
from schedule_audit import ScheduleAudit
from small_world_model import NO_CHOICE, NO_STATE, STOP, VERSION, NullModel, NullSpeculator, Outcomes
from small_world_settings import SmallSettings

from splitfuse.engine.core.batch import Batch, Progress, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.core.engine_core import EngineCore, StepOutput
from splitfuse.engine.core.outputs import OutputDelta, PromptLogprobs
from splitfuse.engine.core.plan import Pace
from splitfuse.engine.core.ports import Decoded
from splitfuse.engine.core.prefix_cache import PrefixCache
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import InFlightStep, StepPipeline, Work

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2  # charges of the fair queue


class SmallTexts(PlainOutputs):
    """OutputBuilder that finds a stop string behind the first new token where the model's choice says so."""

    def __init__(self, model: NullModel) -> None:
        super().__init__()
        self._model = model

    def decode(self, progress: Progress) -> Decoded:
        kind, chosen = self._model.choice
        num_tokens = len(progress.output.token_ids)
        if kind == "text" and chosen is progress.request and num_tokens:
            return Decoded("", num_tokens - 1, stop="end")
        return super().decode(progress)

    def keep_prompt_logprobs(self, batch: Batch, outputs: Sequence[RowOutput]) -> None:
        for row, output in zip(batch.rows, outputs, strict=True):
            if output.prompt_logprobs is not None and row.request in self._prompt_logprobs:
                kept = PromptLogprobs(0)  # a new one each time, since copies of the world hold the old one
                if row.prompt_logprob_positions.start > 1:  # else they begin again, after a change of weights
                    kept.extend(self._prompt_logprobs[row.request])
                kept.extend(output.prompt_logprobs)
                self._prompt_logprobs[row.request] = kept


class SmallWorld:
    """World of a few requests. Every change is an action."""

    def __init__(self, settings: SmallSettings) -> None:
        self.settings = settings
        self.outcomes = Outcomes(settings)
        self.model = NullModel(settings, self.outcomes)
        spec = CacheSpec(settings.num_blocks, settings.block_size, settings.num_host_blocks)
        self.blocks = BlockManager(
            spec,
            prefix_caching=settings.enable_prefix_caching,
            tenant_weights=settings.tenant_weights,
            companions=self._companions(),
        )
        self.states: Any = next(iter(self.blocks.companions), None)
        self.scheduler = Scheduler(settings, self.blocks, max_steps_in_flight=settings.steps_in_flight)
        self.speculator = NullSpeculator(self.model, settings.max_drafts)
        self.texts = SmallTexts(self.model)
        self.core = EngineCore(
            settings,
            self.scheduler,
            self.texts,
            speculation=self.speculator,
            cost_model=CostModel.fixed(1.0, 1.0, 0.0),
            clock=lambda: self.now,
        )
        self.is_split = settings.steps_in_flight > 1  # a step is run and updated by two actions
        self.pipeline = StepPipeline(self.core, self.model, self.model if self.is_split else None)
        self.audit = ScheduleAudit(settings, self.scheduler)  # type: ignore[arg-type]
        self.now = 0.0
        self.requests: list[Request] = []  # all that have come
        self.num_received: dict[Request, int] = {}  # tokens that clients of unfinished requests have
        self.work: Work | None = None
        self.outputs: list[RowOutput] | None = None  # of a step that is not updated yet
        self.num_left = {name: prompt.count for name, prompt in settings.prompts.items()}
        self.events_left = dict(settings.events)
        self.num_unreported = 0  # preemptions that no step's figures have yet
        self._params = {name: prompt.params() for name, prompt in settings.prompts.items()}
        self._places = {name: place for place, name in enumerate(settings.prompts)}
        self._contents_of = self._known_contents()

    def _companions(self) -> list[Any]:
        settings = self.settings
        if settings.states is None:
            return []
        from splitfuse.engine.execution.models.state_slots import StateSpec, num_live_slots
        from splitfuse.engine.extras.hybrid.request_states import companion

        num_live = num_live_slots(settings.max_num_seqs, settings.steps_in_flight)
        spec = StateSpec(num_live, **settings.states)
        self.model.states = [NO_STATE] * spec.num_slots
        self.model.host_states = [NO_STATE] * spec.num_host
        return [companion(spec, settings.tenant_weights)]

    def _known_contents(self) -> dict[bytes, list[int]]:
        """Return the right contents of a cached block by its hash, of the first weights."""
        size, known = self.settings.block_size, dict[bytes, list[int]]()
        if self.blocks.cache is None:
            return known
        for tokens, contents, tenant in zip(
            self.outcomes.tokens, self.outcomes.contents, self.outcomes.tenants, strict=True
        ):
            hashes: list[bytes] = []
            self.blocks.cache.extend_hashes(hashes, tokens, tenant=tenant)
            known |= {key: contents[i * size : (i + 1) * size] for i, key in enumerate(hashes)}
        return known

    # Actions.

    @property
    def steps(self) -> Sequence[InFlightStep]:
        """Steps in flight."""
        return self.pipeline._steps

    @property
    def unfinished(self) -> list[Request]:
        """Requests whose clients wait."""
        return list(self.num_received)

    def actions(self) -> list[str]:
        """Return all that may happen now. The first goes on with the work, if there is some."""
        if self.outputs is not None:
            actions = ["update"]
        elif self.work is not None:
            actions = self._runs(self.work)
        elif self.pipeline.is_paused and not self.pipeline.is_busy:
            actions = ["resume"]
        elif self.pipeline.has_work:
            actions = ["schedule", *self._drafted()]
        else:
            actions = []
        actions += [f"arrive {name}" for name, count in self.num_left.items() if count]
        if self._may("abort"):
            actions += [f"abort {name}" for name in dict.fromkeys(request.request_id for request in self.num_received)]
        if self._may("tick") and any(r.params.timeout_ms or r.params.max_queue_ms for r in self.num_received):
            actions.append("tick")
        if self._may("weights") and self.work is None and not self.pipeline.is_paused:
            actions.append("weights")
        return actions

    @property
    def has_work(self) -> bool:
        """True if the first action goes on with work."""
        return self.work is not None or self.pipeline.has_work or self.pipeline.is_paused

    def _may(self, event: str) -> bool:
        return self.events_left.get(event, 0) > 0

    def _drafted(self) -> list[str]:
        decodes = self.settings.max_drafts and not self.pipeline.is_busy and not self.pipeline.is_paused
        return ["schedule drafts"] if decodes and self.speculator.choose(self.scheduler.running) else []

    def _runs(self, work: Work) -> list[str]:
        """Return the outcomes of the work that is decided."""
        verb = "run" if self.is_split else "finish"
        rows = work.collect.to_run.rows if work.collect else []
        outcomes = [verb]
        drafted = [row for row in rows if row.num_drafts]
        outcomes += [f"{verb} accept"] if len(drafted) > 1 else []
        for row in (row for row in rows if not row.request.is_finished):
            kinds = [kind for kind in ("stop", "text") if row.needs_sampling and self._may(kind)]
            kinds += ["fail"] if self._may("fail") else []
            kinds += ["accept"] if row.num_drafts else []
            kinds += ["half"] if row.num_drafts > 1 else []
            outcomes += [f"{verb} {kind} {_name(row.request)}" for kind in kinds]
        outcomes += [f"{verb} lost"] if rows and self._may("lost") else []
        outcomes += [f"{verb} nostart"] if work.launch and self._may("nostart") else []
        return outcomes

    def act(self, action: str) -> None:
        """Let an action happen. Raises AssertionError if its results are wrong."""
        verb, *more = action.split()
        getattr(self, f"_{verb}")(*more)

    def _happened(self, event: str) -> None:
        if event in self.events_left:
            self.events_left[event] -= 1

    def _arrive(self, name: str) -> None:
        prompt = self.settings.prompts[name]
        self.num_left[name] -= 1
        group: list[Request] = []
        for index in range(prompt.n):
            group.append(
                Request(
                    request_id=f"{name}{prompt.count - self.num_left[name] - 1}", index=index,
                    prompt_token_ids=list(prompt.token_ids), params=self._params[name],
                    max_num_tokens=len(prompt.token_ids) + prompt.max_tokens, seed=self._places[name] * 4 + index,
                    stop_token_ids=frozenset({STOP}), tenant=prompt.tenant, parent=group[0] if group else None,
                    arrival_time=self.now,
                )
            )  # fmt: skip
        waiting, charged = {request.tenant for request in self.scheduler.waiting}, self._charged()
        level = 0.0 if self.scheduler._counters is None else self.scheduler._counters._level
        self.core.add(group)
        if prompt.tenant not in waiting and not prompt.is_background:
            least = min([charged[tenant] for tenant in waiting if tenant in charged], default=level)
            assert self._charged().get(prompt.tenant, least) >= least, "a tenant has saved up service"
        self.requests += group
        self.num_received.update(dict.fromkeys(group, 0))

    def _abort(self, request_id: str) -> None:
        self._happened("abort")
        expected = [request for request in self.num_received if request.request_id == request_id]
        deltas = self.core.abort(request_id)
        self._receive(deltas, ends=dict.fromkeys(expected, "abort"))
        assert not any(request in self.num_received for request in expected), "an output goes on after its abort"

    def _tick(self) -> None:
        self._happened("tick")
        self.now += 1.0

    def _weights(self) -> None:
        self._happened("weights")
        self.pipeline.is_paused = True

    def _resume(self) -> None:
        from splitfuse.engine.extras.weight_updates.live_model import restart  # imports torch

        self.num_unreported += len(self.scheduler.running)
        restart(self.scheduler)
        self.model.version += 1
        self.pipeline.is_paused = False

    def _schedule(self, drafts: str = "") -> None:
        late = [request for request in self.num_received if self._is_late(request)]
        self._receive(self.core.expire(), ends=dict.fromkeys(late, "timeout"))
        assert not any(request in self.num_received for request in late), "a request goes on after its time"
        self.speculator.is_on = bool(drafts)
        self.audit.before(Pace())
        is_first = {request for request in self.scheduler.waiting if request.first_scheduled_time is None}
        hits, charged = self.blocks.num_prefix_hits, self._charged()
        num_steps, num_preempted = len(self.steps), self.scheduler.num_preemptions
        self.work = self.pipeline.schedule()
        self.speculator.is_on = False
        self.num_unreported += self.scheduler.num_preemptions - num_preempted
        if len(self.steps) > num_steps:
            batch = self.steps[-1].scheduled.batch
            self.audit.check(batch)
            self._check_admitted(batch, is_first, hits, charged)
        elif not num_steps:
            self.audit.check(None)
            assert self.work is None
            assert not self.core.num_unfinished, "requests wait and nothing is decided"

    def _is_late(self, request: Request) -> bool:
        params, since = request.params, 1000 * (self.now - request.arrival_time)
        limit = params.max_queue_ms if request.first_scheduled_time is None else None
        return any(most is not None and since >= most for most in (params.timeout_ms, limit))

    def _check_admitted(self, batch: Batch, is_first: set[Request], num_hits: int, charged: dict[str, float]) -> None:
        """Check what a decision counts of the requests that it computes first: cached tokens and charges."""
        first = [row for row in batch.rows if row.request in is_first]
        assert self.blocks.num_prefix_hits - num_hits == sum(row.start for row in first), "prefix hits are miscounted"
        for row in first:
            assert row.request.num_cached_tokens == row.start, f"{row.request} has other cached tokens"
            if not row.request.is_background:
                amount = PROMPT_WEIGHT * (row.request.num_prompt_tokens - row.start)
                self._charge(charged, row.request.tenant, amount)
        self._check_charged(charged)

    def _charge(self, charged: dict[str, float], tenant: str, amount: float) -> None:
        if charged:
            charged[tenant] += amount / (self.settings.tenant_weights or {}).get(tenant, 1.0)

    def _charged(self) -> dict[str, float]:
        return {} if self.scheduler._counters is None else dict(self.scheduler._counters._charged)

    def _check_charged(self, charged: dict[str, float]) -> None:
        assert self._charged() == charged, f"tenants are charged {self._charged()}, not {charged}"

    def _run(self, choice: str = "", name: str = "") -> None:
        self._happened(choice)
        assert self.work is not None
        self.model.choice = (choice, next((request for request in self.requests if _name(request) == name), None))
        self.outputs = self.pipeline.run(self.work)

    def _finish(self, choice: str = "", name: str = "") -> None:
        self._run(choice, name)
        self._update()

    def _update(self) -> None:
        assert self.work is not None
        assert self.outputs is not None
        work, outputs, charged = self.work, self.outputs, self._charged()
        self.work = self.outputs = None
        kind, chosen = self.model.choice
        failed = [] if chosen is None or kind != "fail" else chosen.block_table[:]
        output = self.pipeline.update(work, outputs)
        if output is not None and work.collect is not None:
            found = set[int]() if self.blocks.cache is None else set(failed).intersection(self.blocks.cache.blocks)
            assert not found, "blocks of a failed request can be found"
            self._check_figures(output, work.collect.scheduled.batch, charged)
            reason = {"stop": "stop", "text": "stop", "fail": "error"}.get(kind)
            self._receive(output.deltas, ends={chosen: reason} if chosen is not None and reason else {})
        self.model.choice = NO_CHOICE

    def _check_figures(self, output: StepOutput, batch: Batch, charged: dict[str, float]) -> None:
        stats, device = output.stats, self.blocks.device
        assert stats is not None
        assert stats.num_prefill_tokens + stats.num_decode_tokens == batch.num_tokens
        assert (stats.num_running, stats.num_waiting) == (len(self.scheduler.running), len(self.scheduler.waiting))
        assert stats.num_used_blocks == sum(count > 0 for count in device._references)
        assert stats.num_output_tokens == sum(len(delta.token_ids) for delta in output.deltas)
        assert stats.num_preempted == self.num_unreported, (
            f"{stats.num_preempted} preemptions, not {self.num_unreported}"
        )
        self.num_unreported = 0
        by_name = {(request.request_id, request.index): request for request in self.num_received}
        for delta in output.deltas:
            request = by_name.get((delta.request_id, delta.index))
            if request is not None and not request.is_background:
                num_dropped = request.num_output_tokens - self.num_received[request] - len(delta.token_ids)
                num_tokens = len(delta.token_ids) + max(0, num_dropped)
                self._charge(charged, request.tenant, OUTPUT_WEIGHT * num_tokens)
        if self.model.choice[0] != "text":  # tokens behind a stop string are charged, and dropped
            self._check_charged(charged)

    # Clients.

    def _receive(self, deltas: Sequence[OutputDelta], *, ends: dict[Request, str]) -> None:
        """Give deltas to clients. `ends`: the requests that end now other than by their length, with the reason."""
        by_name = {(request.request_id, request.index): request for request in self.num_received}
        for delta in deltas:
            request = by_name.get((delta.request_id, delta.index))
            assert request in self.num_received, f"{delta.request_id} gets more after its end"
            assert request is not None
            right, begin = self.outcomes.tokens[request.seed], request.num_prompt_tokens + self.num_received[request]
            end = begin + len(delta.token_ids)
            expected, got = right[begin:end], list(delta.token_ids)
            if ends.get(request) == "stop" and got and self.model.choice[0] == "stop":
                expected[-1] = STOP
            assert got == expected, f"{_name(request)} gets {got}, undisturbed {expected}"
            if request.needs_prompt_logprobs and got and begin == request.num_prompt_tokens:
                scored = [score and score.token_id for score in delta.prompt_logprobs or ()]
                assert scored == [None, *right[1:begin]], f"{_name(request)} gets logprobs of {scored}"
            self.num_received[request] += len(got)
            is_long = end >= self.outcomes.num_tokens[request.seed]
            reason = ends.get(request, "length" if is_long else None)
            assert delta.finish_reason == reason, f"{_name(request)} ends by {delta.finish_reason}, not {reason}"
            if reason is not None:
                assert request.is_finished
                assert request.num_output_tokens == self.num_received[request], "tokens behind the end are kept"
                del self.num_received[request]

    # Checks.

    def check(self) -> None:
        """Check everything that holds between two actions. Raises AssertionError."""
        scheduler, unfinished = self.scheduler, self.num_received
        scheduler.check()
        known = {request for requests in self.core._requests.values() for request in requests}
        assert known == unfinished.keys() == {*scheduler.running, *scheduler.waiting}, "a request is lost, or kept"
        assert not any(self.blocks._moves), "blocks are moved without a step"
        assert self.states is None or not any(self.states._swaps), "states are moved without a step"
        for request, num_received in unfinished.items():
            right = self.outcomes.tokens[request.seed]
            assert request.token_ids == right[: request.num_tokens], f"{request} has other tokens than undisturbed"
            assert request.num_output_tokens == num_received, f"{request}: {num_received} tokens were delivered"
        for request in self.requests:
            assert request in unfinished or request.is_finished, f"{request} goes on without a client"
        num_preemptions = sum(request.num_preemptions for request in self.requests)
        assert num_preemptions == scheduler.num_preemptions, "preemptions are miscounted"
        self._check_contents()
        if not unfinished and not self.steps:
            assert not self.blocks.device.num_used_blocks, "blocks leak"
            assert self.blocks.host is None or not self.blocks.host.num_used_blocks, "host blocks leak"
            assert not self.texts._prompt_logprobs, "the texts of requests that have ended are kept"
            if self.states is not None:
                slots = self.states.slots
                assert slots.num_used == len({kept.slot for kept in slots.checkpoints}), "state slots leak"
                assert slots.host is None or not slots.host.num_used_blocks, "state slots of the host leak"

    def _check_contents(self) -> None:
        """Check that requests and the cache hold what they should, unless moves are still to be made."""
        model = self.model
        if any(any(step.to_run.moves) for step in self.steps):
            return
        self._check_checkpoints()
        starts: dict[Request, int] = {}
        for step in self.steps:
            for row in step.to_run.rows:
                starts.setdefault(row.request, row.start)
        for request in self.num_received:
            num_tokens = starts.get(request, request.num_computed_tokens)
            is_away = bool(request.host_block_table)
            table = request.host_block_table if is_away else request.block_table
            found = model.slots(table, num_tokens, model.host if is_away else None)
            assert found == model.right(request)[:num_tokens], f"{request} holds wrong contents"
        if self.blocks.cache is not None:
            self._check_cache(self.blocks.cache)

    def _check_checkpoints(self) -> None:
        """Check that a checkpoint holds the state after its block's last token, unless a step fills it."""
        for kept in self.states.slots.checkpoints if self.states is not None else ():
            if isinstance(kept.key, int):
                size = self.settings.block_size
                last = self.model.device[(kept.key + 1) * size - 1]
                assert self.model.states[kept.slot][0] == last, "a checkpoint is the state after other tokens"

    def _check_cache(self, cache: PrefixCache) -> None:
        size, device, more = self.settings.block_size, self.model.device, VERSION * self.model.version
        for block, entry in cache._content.items():
            expected = self._contents_of.get(entry.block_hash, [])
            found = [number - more for number in device[block * size : (block + 1) * size]]
            assert found == expected, f"block {block} does not hold what its hash stands for"


def _name(request: Request) -> str:
    """Return the name of an output in actions."""
    return f"{request.request_id}.{request.index}" if request.index else request.request_id
