"""No step waits for the device on its way: neither `launch` nor the capture of a graph."""

from typing import Any

import pytest
import torch
from no_waits import Wait, no_waits
from overlapped_llm import SAMPLING_FIELDS, SPECIAL_FIELDS, launcher_of, within
from repeating_capturer import RepeatingCapturer

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.execution.runner.cuda_graphs import graph_sizes
from splitfuse.engine.execution.sampling import sampler

# Grammars wait for the last step's tokens, behind this step's forward pass.
FIELDS = [fields for fields in SAMPLING_FIELDS + SPECIAL_FIELDS if "structured_outputs" not in fields]


@pytest.fixture
def llm(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Return an LLM whose launches and captures refuse waits, and filter as a GPU does."""
    filtered = lambda scaled, likeliest, arrays: (  # noqa: E731
        sampler._filtered(scaled, *(arrays[name] for name in ("keys", "top_k", "top_p", "min_p")))
        if "top_k" in arrays
        else sampler.ops.gumbel_argmax(scaled, arrays["keys"])
    )
    monkeypatch.setattr(sampler, "_drawn", filtered)
    llm = LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True, max_num_seqs=8)
    launcher = launcher_of(llm)
    launch = launcher.launch

    def guarded(batch: Any) -> Any:
        with no_waits():
            return launch(batch)

    monkeypatch.setattr(launcher, "launch", guarded)
    return llm


@pytest.mark.parametrize("has_graphs", [False, True])
def test_launches_do_not_wait(llm: LLM, has_graphs: bool) -> None:
    launcher, capturer = launcher_of(llm), RepeatingCapturer()
    if has_graphs:
        launcher.use_graphs(capturer, sizes=graph_sizes(8), hidden_size=64, dtype=torch.float32)
        with no_waits():
            launcher.capture_graphs()
    params = [
        SamplingParams(seed=seed, max_tokens=6, **within({"ignore_eos": True, **fields}, 6))
        for seed, fields in enumerate(FIELDS)
    ]
    outputs = llm.generate([[30 + index] * (1 + index % 20) for index in range(len(params))], params)
    assert all(output.outputs[0].token_ids for output in outputs)
    assert capturer.num_replayed > 10 or not has_graphs


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: x.long().repeat_interleave(x.long()),
        lambda x: torch.tensor([1, 2], device=x.device),
    ],
)
def test_a_wait_is_refused(wait: Any) -> None:
    with no_waits(), pytest.raises(Wait):
        wait(torch.ones(3))
    wait(torch.ones(3))
