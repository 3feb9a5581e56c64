"""PolicyComparison: simulates requests under other batching policies, without the model.

Each runs in its own process, one at a time and for a bounded time, so that the engine's steps never wait for it.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....engine.errors import InvalidRequestError, QueueFullError, RequestFailedError

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine

_TIMEOUT_S = 20.0
_MODULE = f"{__package__}.policy_worker"


class PolicyComparison:
    """Comparisons of one server, one at a time."""

    def __init__(self) -> None:
        self._is_running = False

    async def run(
        self, engine: "AsyncEngine", *, policies: Sequence[str], arrivals: Sequence[Sequence[float]]
    ) -> dict[str, Any]:
        """Return each policy's steps, in the form of the stream of steps.

        `arrivals`: (seconds, prompt tokens, output tokens). Raises QueueFullError, InvalidRequestError.
        """
        room = engine.stats()["num_blocks"] * engine.config.block_size
        if any(prompt + output > room for _, prompt, output in arrivals):
            raise InvalidRequestError(f"a request is longer than the KV cache of {room} tokens", param="arrivals")
        if self._is_running:
            raise QueueFullError("a simulation runs already; try again when it has ended", retry_after_s=2.0)
        self._is_running = True
        try:
            job = _job(engine) | {"policies": policies, "arrivals": arrivals}
            return await _ask(json.dumps(job).encode())
        finally:
            self._is_running = False


def _job(engine: "AsyncEngine") -> dict[str, Any]:
    stats, config = engine.stats(), engine.config
    names = ("max_num_batched_tokens", "max_num_seqs", "block_size", "long_prefill_token_threshold")
    cost = stats["cost_model"]
    return {
        "config": {name: getattr(config, name) for name in names},
        "num_blocks": stats["num_blocks"],
        "cost": [cost["a"], cost["b"], cost["c"]],
    }


async def _ask(job: bytes) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", _MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            out, _ = await process.communicate(job)
    except TimeoutError:
        raise InvalidRequestError(
            f"the simulation took more than {_TIMEOUT_S:.0f} s; send fewer arrivals", param="arrivals"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RequestFailedError("the simulation failed", error_id=f"exit code {process.returncode}")
    answer: dict[str, Any] = json.loads(out)
    return answer
