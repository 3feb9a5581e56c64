"""EnginePart: what an extension adds to one engine; ExtensionParts: those that an engine's settings and model ask for.

A hook that gets a value returns what the engine uses in its place: the value, or something around it. The next part's
hook gets that.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..config import EngineConfig, ResolvedConfig
from ..core.block_manager import BlockManager
from ..core.block_ports import BlockCompanion
from ..core.cost_model import CostModel
from ..core.ports import Pacer, RequestObserver, Runner, SchedulerListener, Speculator
from ..core.sampling_params import SamplingParams
from ..extension import used

if TYPE_CHECKING:
    from ..execution.runner.model_runner import ModelRunner
    from ..language.text.tokenizer import Tokenizer

NewCompanion = Callable[[BlockManager], BlockCompanion]
T = TypeVar("T")
P = TypeVar("P", bound="EnginePart")


@dataclass(frozen=True)
class ServedModel:
    """Loaded model of an engine. `tokenizer` is None if the folder has none (dummy weights)."""

    wishes: EngineConfig
    config: ResolvedConfig
    folder: Path
    runner: "ModelRunner"
    tokenizer: "Tokenizer | None"


class Assembly(NamedTuple):
    """Values that parts need when the steps are put together."""

    config: ResolvedConfig
    cost_model: CostModel
    max_steps_in_flight: int
    is_test: bool = False  # of the engine's test of itself


class EnginePart:
    """State that an extension keeps for one engine. Subclasses override what they need; hooks here change nothing."""

    generates = True  # False if the model only computes states

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    # The steps are put together.

    def config(self, config: ResolvedConfig) -> ResolvedConfig:
        """Change settings to what the model needs."""
        return config

    def companions(self, companions: Sequence[NewCompanion], assembly: Assembly) -> Sequence[NewCompanion]:
        """Keep what requests have beside their blocks, or cached blocks elsewhere."""
        return companions

    def runner(self, runner: Runner, assembly: Assembly) -> Runner:
        """Wrap the runner."""
        return runner

    def pacer(self, pacer: Pacer, assembly: Assembly) -> Pacer:
        """Set the size of steps."""
        return pacer

    def observer(self, observer: RequestObserver, assembly: Assembly) -> RequestObserver:
        """Hear of the life of each request."""
        return observer

    def listener(self, listener: SchedulerListener | None, assembly: Assembly) -> SchedulerListener | None:
        """Receive each change of the scheduler."""
        return listener

    def speculator(self, speculator: Speculator, assembly: Assembly) -> Speculator:
        """Draft tokens."""
        return speculator

    # A request comes.

    def test_params(self, params: SamplingParams) -> SamplingParams:
        """Change the parameters of the engine's test of itself."""
        return params

    async def params_for(self, params: SamplingParams) -> SamplingParams:
        """Complete the parameters of a request before its prompt is read."""
        return params

    def params_now(self, params: SamplingParams) -> SamplingParams:
        """Like `params_for`, and wait here."""
        return params

    async def fetch(self, token_ids: Sequence[int], params: SamplingParams, *, tenant: str) -> None:
        """Prepare for a prompt before it is queued."""

    def fetch_now(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        """Like `fetch`, and wait here."""

    # The model has variants.

    @property
    def variants(self) -> Sequence[Any]:
        """Variants of the model that requests can name; each has a `name` and the time at which it was `created`."""
        return ()

    def variant_digest(self, name: str) -> str:
        """Return the hash of the variant of this name; "" if there is none."""
        return ""

    # Others ask.

    def stats(self) -> dict[str, Any]:
        """Return figures for /stats."""
        return {}

    def weights_changed(self, path: Path | None, fingerprint: str) -> None:
        """Go on with other weights; `path` is None if they came as tensors."""

    def close(self) -> None:
        """End: the engine stops."""


class ExtensionParts:
    """Parts of one engine, in the order of their extensions."""

    def __init__(self, model: ServedModel | None = None) -> None:
        """Make the parts. Raises ConfigError."""
        self._parts: list[EnginePart] = []
        for extension in used(model.wishes) if model is not None else ():
            if extension.part is not None and (part := extension.load(extension.part)(model)) is not None:
                self._parts.append(part)

    def __iter__(self) -> Iterator[EnginePart]:
        return iter(self._parts)

    @property
    def generate(self) -> bool:
        """False if the model only computes states."""
        return all(part.generates for part in self._parts)

    def find(self, kind: type[P]) -> P | None:
        """Return the part of this class; None if the engine has none."""
        return next((part for part in self._parts if isinstance(part, kind)), None)

    def wrapped(self, hook: str, value: T, *arguments: Any) -> T:
        """Return the value after this hook of every part."""
        for part in self._parts:
            value = getattr(part, hook)(value, *arguments)
        return value

    def stats(self) -> dict[str, Any]:
        """Return the figures of all parts."""
        return {name: figure for part in self._parts for name, figure in part.stats().items()}

    def close(self) -> None:
        """Close every part."""
        for part in self._parts:
            part.close()


class ExtendedEngine:
    """Base of the engine's entries: the parts of extensions, and what changes with the weights."""

    config: ResolvedConfig  # once the model is loaded

    def __init__(self) -> None:
        self.extensions = ExtensionParts()
        self.weights_version = 0  # number of updates so far
        self.weights_path: Path | None = None  # folder or GGUF file; None if the weights came as tensors
        self.paused: str | None = None  # reason why no step is taken: paused or sleeping
        self._states: dict[type, Any] = {}
        self._making_state = threading.RLock()

    def part(self, kind: type[P]) -> P | None:
        """Return an extension's part of this class; None if the engine has none."""
        return self.extensions.find(kind)

    def state(self, kind: type[T]) -> T:
        """Return an extension's state of this class, made of the engine when first asked for."""
        with self._making_state:
            if kind not in self._states:
                self._states[kind] = kind(self)  # type: ignore[call-arg]
        found: T = self._states[kind]
        return found

    @property
    def generates(self) -> bool:
        """False if the model only computes states."""
        return self.extensions.generate

    @property
    def variants(self) -> list[Any]:
        """Variants of the model that requests can name."""
        return [variant for part in self.extensions for variant in part.variants]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights; with others a resumed request could go on to other tokens."""
        return self.config.fingerprint

    def fingerprint_of(self, variant: str | None) -> str:
        """Return the fingerprint of the model's variant of this name: another one could go on differently."""
        if variant is None:
            return self.config.fingerprint
        return f"{self.config.fingerprint}+{''.join(part.variant_digest(variant) for part in self.extensions)}"

    def take_weights(self, path: Path | None, fingerprint: str) -> None:
        """Note that the model has other weights from now on."""
        self.weights_version += 1
        self.weights_path, self.config = path, replace(self.config, fingerprint=fingerprint)
        for part in self.extensions:
            part.weights_changed(path, fingerprint)
