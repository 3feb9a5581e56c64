"""Adapters: the adapters of one engine by name: read and checked when they are named, kept in memory while there is
room, and read again when a request names an evicted one.
"""

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary, finalize

import numpy as np

from ...config import EngineConfig
from ...core.batch import BatchRow
from ...core.sampling_params import SamplingParams
from ...errors import ConfigError, InvalidRequestError, ModelNotFoundError
from ...execution.models.forward_inputs import Arrays
from ...language.workers.heap import return_freed_memory
from ...language.workers.shares import most_of
from ...serving.engine_part import EnginePart, ServedModel
from . import AdapterSettings
from .adapted import LoraTargets
from .matrices import Matrices
from .peft_folder import read_folder
from .request import LoRARequest

if TYPE_CHECKING:
    from ....kernels.ops import AdapterTable
    from ...serving.llm import LLM


@dataclass(frozen=True, eq=False)
class Adapter:
    """Adapter: matrices in memory that a request's rows add. Whoever runs such a row holds it.

    `digest`: hash of its files; `secret`: of this process, for the prefix cache.
    """

    name: str
    digest: str
    table: "AdapterTable"
    secret: bytes
    whole: Any = None  # the adapter whose place in memory this one, of one tenant's requests, holds

    def params(self, params: SamplingParams) -> SamplingParams:
        """Return parameters with this adapter, whose blocks no other adapter and no plain request can find."""
        # Nobody can send this salt, because nobody knows the secret.
        salt = hmac.new(self.secret, f"{self.digest} {params.cache_salt}".encode(), "sha256").hexdigest()
        return replace(params, adapter=self, cache_salt=salt)

    def named(self) -> "Adapter":
        """Return the adapter without its matrices, for what outlives a request: its place in memory is free."""
        return replace(self, table=cast(Any, None), whole=None)

    def arrays(self, rows: Sequence[BatchRow]) -> Arrays:
        """Return the tiles of a step's rows, grouped by adapter."""
        tokens: dict[int, list[int]] = {}
        start = 0
        for row in rows:
            if (adapter := row.request.params.adapter) is not None:
                tokens.setdefault(adapter.table.address, []).extend(range(start, start + row.num_tokens))
            start += row.num_tokens
        return {"adapter_tiles": np.array(self.table.tiles(tokens), dtype=np.int64)}


T = TypeVar("T")
_NICENESS = 5  # the reading thread's, so that the steps come first


@dataclass(frozen=True)
class NamedAdapter:
    """Adapter that requests can name. `digest`: hash of the files when they were named."""

    name: str
    path: Path
    digest: str
    created: float  # wall clock


class FullError(InvalidRequestError):
    """There is no room: every adapter in memory has unfinished requests."""


class Adapters(EnginePart):
    """Adapters of one engine. Methods may be called from any thread; `params_for` belongs to the event loop."""

    def __init__(self, config: EngineConfig, model: Any) -> None:
        """`model`: a decoder that was built with adapters."""
        self._sites: LoraTargets = model.sites
        self._config = settings = config.section(AdapterSettings)
        self._is_divided = config.queue_order == "fair"
        self._room = settings.max_loras
        self._max_rank = settings.max_lora_rank
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # one adapter is read at a time
        self._named: dict[str, NamedAdapter] = {}
        self._loaded: WeakValueDictionary[str, Adapter] = WeakValueDictionary()  # by digest: all in memory
        self._kept: OrderedDict[str, Adapter] = OrderedDict()  # by digest, least recently used first
        self._turn = asyncio.Lock()  # held by a request whose adapter is not in memory
        # With several keys, by tenant and digest: what the tenant's requests hold.
        self._held: WeakValueDictionary[tuple[str, str], Adapter] = WeakValueDictionary()
        self._wakes: set[Callable[[], None]] = set()  # wake requests that wait for room or for a share
        self._thread: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, model: ServedModel) -> "Adapters":
        """Make the adapters of an engine, --lora-modules' included. Raises ConfigError."""
        adapters = cls(model.config, model.runner.model)
        adapters.add_configured()
        return adapters

    # Names.

    @property
    def variants(self) -> list[NamedAdapter]:
        """Like `named`."""
        return self.named

    @property
    def named(self) -> list[NamedAdapter]:
        """Adapters that requests can name, the oldest first."""
        return list(self._named.values())

    @property
    def num_loaded(self) -> int:
        """Number of adapters in memory."""
        return len(self._loaded)

    @property
    def num_bytes(self) -> int:
        """Memory of the adapters."""
        return sum(adapter.table.num_bytes for adapter in list(self._loaded.values()))

    def stats(self) -> dict[str, Any]:
        """Return names and memory for /stats."""
        names = [named.name for named in self.named]
        return {"adapters": {"named": names, "num_loaded": self.num_loaded, "bytes": self.num_bytes}}

    def has(self, name: object) -> bool:
        """True if an adapter has this name."""
        return isinstance(name, str) and name in self._named

    def variant_digest(self, name: str) -> str:
        """Return the hash of the files of the adapter of this name; "" if there is none."""
        return self._named[name].digest if name in self._named else ""

    def add_configured(self) -> None:
        """Name the adapters of --lora-modules. Raises ConfigError."""
        for text in self._config.lora_modules:
            self.add(*_module(text))

    def add(self, name: str, path: Path, *, replaces: bool = False) -> NamedAdapter:
        """Read and check an adapter, and give it a name. Takes time. Raises ConfigError; nothing has changed then.

        `replaces`: the name may be in use; unfinished requests keep their adapter.
        """
        if self._config.serves(name):
            raise ConfigError(f"{name!r} is the model's own name; give the adapter another one")
        matrices = _read(path)
        named = NamedAdapter(name, path, matrices.digest, time.time())
        with contextlib.suppress(FullError):  # it is read again once a request names it
            self._load(named, matrices)
        self._check(named, matrices)
        with self._lock:
            if not replaces and (known := self._named.get(name)) is not None and known.path != path:
                raise ConfigError(f"the adapter {name!r} is loaded already, from {known.path}; unload it first")
            self._named[name] = named
        return named

    def _check(self, named: NamedAdapter, matrices: Matrices) -> None:
        """Raise ConfigError if an adapter that found no room does not fit the model."""
        if named.digest not in self._loaded:
            self._sites.table(matrices, max_rank=self._max_rank, about=str(named.path))

    def remove(self, name: str) -> None:
        """Forget a name. Unfinished requests keep the adapter to their end. Raises ModelNotFoundError."""
        with self._lock:
            if name not in self._named:
                raise ModelNotFoundError(f"the adapter {name[:100]!r} is not loaded")
            named = self._named.pop(name)
            if named.digest not in {other.digest for other in self._named.values()}:
                self._kept.pop(named.digest, None)

    # Requests.

    def load(self, name: str) -> Adapter:
        """Return an adapter, and read it if it has left memory. Takes time. Raises ModelNotFoundError, ConfigError,
        FullError.
        """
        with self._lock:
            named = self._named.get(name)
        if named is None:
            raise ModelNotFoundError(f"the adapter {name[:100]!r} is not loaded")
        if (adapter := self._found(named)) is not None:
            return adapter
        with self._reading:
            return self._found(named) or self._load(named, _read(named.path))

    def request(self, request: Any) -> Adapter:
        """Return the adapter of a LoRARequest, like `name` and `load`. Raises InvalidRequestError."""
        self.name(request)
        try:
            return self.load(request.lora_name)
        except ConfigError as exc:
            raise InvalidRequestError(str(exc), param="lora_request") from exc

    def name(self, request: Any) -> str:
        """Return the name of a LoRARequest's adapter, which gets it if it is new. Raises InvalidRequestError."""
        if not isinstance(request, LoRARequest):
            raise InvalidRequestError(f"lora_request must be a LoRARequest, not {type(request).__name__}")
        try:
            known = self._named.get(request.lora_name)
            if known is None or (request.path and known.path != Path(request.path)):
                if not request.path:
                    raise InvalidRequestError(f"the adapter {request.lora_name!r} is not loaded; give its path")
                self.add(request.lora_name, Path(request.path))
        except ConfigError as exc:
            raise InvalidRequestError(str(exc), param="lora_request") from exc
        return request.lora_name

    async def params_for(self, params: SamplingParams, *, tenant: str) -> SamplingParams:
        """Return parameters that name an adapter with the adapter itself. Waits for files, room, the tenant's share.

        Raises InvalidRequestError, ModelNotFoundError.
        """
        if not isinstance(name := params.adapter, str):
            return params
        with self._lock:
            named = self._named.get(name)
        while named is not None and not self._may_hold(tenant, named.digest):
            with self._woken() as freed:
                await freed.wait()
        if named is not None and not self._turn.locked() and (adapter := self._found(named)) is not None:
            return self._held_by(tenant, adapter).params(params)
        async with self._turn:  # a request that waits for room holds up later ones, so none waits for ever
            try:
                while True:
                    with self._woken() as freed:
                        with contextlib.suppress(FullError):
                            adapter = await self.in_thread(partial(self.load, name))
                            return self._held_by(tenant, adapter).params(params)
                        await freed.wait()
            except ConfigError as exc:
                raise InvalidRequestError(str(exc), param="model") from exc

    def _may_hold(self, tenant: str, digest: str) -> bool:
        """True unless the tenant's requests hold half of the places that others' leave, and not this adapter's."""
        held = list(self._held)
        own, others = ({key[1] for key in held if (key[0] == tenant) is is_own} for is_own in (True, False))
        most = most_of(self._room, num_own=len(own), num_all=len(own) + len(others), is_divided=True)
        return not own or digest in own or len(own) < most

    def _held_by(self, tenant: str, adapter: Adapter) -> Adapter:
        """Return the adapter as this tenant's requests hold it."""
        if not self._is_divided:
            return adapter
        if (held := self._held.get((tenant, adapter.digest))) is None:
            held = self._held[tenant, adapter.digest] = replace(adapter, whole=adapter)
            finalize(held, self._note_freed)
        return held

    def params_now(self, params: SamplingParams) -> SamplingParams:
        """Like EnginePart."""
        return self.load(params.adapter).params(params) if isinstance(params.adapter, str) else params

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a call that reads an adapter in a thread of lower priority than the steps'."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="splitfuse-adapters", initializer=_be_nice)
        return await asyncio.get_running_loop().run_in_executor(self._thread, _trimmed, call)

    @contextlib.contextmanager
    def _woken(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set when requests let an adapter go."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(event.set)

        self._wakes.add(wake)
        try:
            yield event
        finally:
            self._wakes.discard(wake)

    def _found(self, named: NamedAdapter) -> Adapter | None:
        with self._lock:
            if (adapter := self._loaded.get(named.digest)) is not None:
                self._kept[named.digest] = adapter
                self._kept.move_to_end(named.digest)
            return adapter

    def _load(self, named: NamedAdapter, matrices: Matrices) -> Adapter:
        if matrices.digest != named.digest:
            raise ConfigError(f"{named.path} has changed since the adapter {named.name!r} was loaded; load it again")
        if (adapter := self._found(named)) is not None:
            return adapter
        self._make_room()
        table = self._sites.table(matrices, max_rank=self._max_rank, about=str(named.path))
        adapter = Adapter(named.name, named.digest, table, self._secret)
        finalize(adapter, self._note_freed)
        with self._lock:
            self._loaded[named.digest] = self._kept[named.digest] = adapter
        return adapter

    def _make_room(self) -> None:
        """Let least recently used adapters go until one more has room. Raises FullError if all have requests."""
        with self._lock:
            used = []
            while self._kept and len(self._loaded) >= self._room:
                digest = next(iter(self._kept))
                del self._kept[digest]  # the last reference, unless a request has one
                used.append(digest)
            if len(self._loaded) >= self._room:  # nothing is kept now: the first adapter whose requests end goes
                raise FullError(
                    f"all {self._room} adapters in memory have unfinished requests; start with a larger --max-loras",
                    param="lora_request",
                )
            for digest in used:
                if (adapter := self._loaded.get(digest)) is not None:
                    self._kept[digest] = adapter

    def _note_freed(self) -> None:
        for wake in tuple(self._wakes):
            wake()


def _module(text: str) -> tuple[str, Path]:
    """Read an entry of --lora-modules, in one of vLLM's two forms. Raises ConfigError."""
    name, _, path = text.partition("=")
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
            name, path = fields["name"], fields["path"]
        except (ValueError, KeyError) as exc:
            raise ConfigError(f"lora_modules: {text[:100]!r} is no JSON with name and path") from exc
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ConfigError(f"lora_modules: {text[:100]!r} is not NAME=PATH")
    return name, Path(path).expanduser()


def _read(path: Path) -> Matrices:
    if path.suffix == ".gguf" and path.is_file():  # a pipe would be waited for
        from .gguf_file import read_file  # the other format needs less

        return read_file(path)
    return read_folder(path)


def _trimmed(call: Callable[[], T]) -> T:
    """Call, and give back the memory of the files, which glibc would keep: 30 MiB for adapters of SmolLM2."""
    try:
        return call()
    finally:
        return_freed_memory()


def _be_nice() -> None:
    with contextlib.suppress(OSError, AttributeError):  # on Linux the priority is a thread's own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def with_adapters(llm: "LLM", params: Sequence[SamplingParams], lora_request: Any) -> list[SamplingParams]:
    """Return the parameters with the adapters of a LoRARequest, or of one or None per prompt."""
    from ...serving.llm import check_one_each  # here: a server has no LLM

    if (adapters := llm.engine.part(Adapters)) is None:
        raise InvalidRequestError("lora_request needs LLM(enable_lora=True)", param="lora_request")
    requests = list(lora_request) if isinstance(lora_request, (list, tuple)) else [lora_request] * len(params)
    check_one_each(params, requests, "LoRA requests")
    pairs = zip(params, requests, strict=True)
    return [item if request is None else adapters.request(request).params(item) for item, request in pairs]
