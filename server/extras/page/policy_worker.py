"""Process that simulates policies: reads one JSON object from standard input, writes one to standard output.

Imports no torch.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ....engine.config import EngineConfig, ResolvedConfig
from ....engine.core.cost_model import CostModel
from ....engine.extras.inspection.step_watcher import StepWatcher
from ....engine.extras.simulation.simulator import Arrival, Simulation


def simulated(job: Mapping[str, Any], policy: str) -> list[dict[str, Any]]:
    """Return the records of the last steps of these arrivals under a policy."""
    wishes = EngineConfig(**job["config"], batching_policy=policy, enable_prefix_caching=False)
    config = ResolvedConfig.of(wishes, device="cpu")
    simulation = Simulation(config, num_blocks=job["num_blocks"], cost=CostModel.fixed(*job["cost"]))
    watcher = StepWatcher(simulation.scheduler, max_num_batched_tokens=config.max_num_batched_tokens)
    simulation.scheduler.listeners.append(watcher)
    simulation.run([Arrival(*arrival) for arrival in sorted(map(tuple, job["arrivals"]))])
    return watcher.take()[1]


def run(job: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Simulate each policy."""
    return [{"policy": policy, "steps": simulated(job, policy)} for policy in job["policies"]]


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(10)  # the engine's steps have priority
    json.dump({"runs": run(json.load(sys.stdin))}, sys.stdout)
