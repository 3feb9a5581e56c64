"""EnginePart: what an extension adds to one engine; ExtensionParts: those that an engine's settings and model ask for.

A hook that gets a value returns what the engine uses in its place: the value, or something around it. The next part's
hook gets that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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

    async def params_for(self, params: SamplingParams, *, tenant: str) -> SamplingParams:
        """Complete the parameters of a request before its prompt is read."""
        return params

    def params_now(self, params: SamplingParams) -> SamplingParams:
        """Like `params_for`, and wait here."""
        return params

    async def constrained(self, prompt: Any, reader: Any) -> Any:
        """Restrict the tokens of a TokenizedPrompt's request further. `reader`: the PromptReader."""
        return prompt

    async def fetch(self, token_ids: Sequence[int], params: SamplingParams, *, tenant: str) -> None:
        """Prepare for a prompt before it is queued."""

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
