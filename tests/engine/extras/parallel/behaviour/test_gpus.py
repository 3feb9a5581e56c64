"""GPUs of the ranks: what is refused, and the GPU that a rank sees."""

from pathlib import Path

import pytest
import torch

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.parallel.group import check_gpus, environment
from splitfuse.engine.extras.parallel.parallel_model import Setup, start_ranks


def pretend(monkeypatch: pytest.MonkeyPatch, *names: str, has_nccl: bool = True) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: has_nccl)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: names[number])


def test_ranks_need_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "H100", "H100", has_nccl=False)
    setup = Setup(ResolvedConfig.of(EngineConfig(tensor_parallel_size=2), device="cuda"), Path(), 1)
    with pytest.raises(
        ConfigError, match=r"--tensor-parallel-size 2 on GPUs needs NCCL, which torch .* lacks; install"
    ):
        start_ranks(setup)


def test_each_rank_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "H100", "H100")
    check_gpus(2)
    with pytest.raises(ConfigError, match="--tensor-parallel-size 4 needs 4 GPUs, torch sees 2; lower it"):
        check_gpus(4)


def test_the_gpus_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "H100", "A100", "H100")
    with pytest.raises(ConfigError, match=r"the first 2 GPUs differ \(H100, A100\); CUDA_VISIBLE_DEVICES chooses"):
        check_gpus(2)
    check_gpus(1)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("3, 5,6", ["3", "5"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"])],
)
def test_a_rank_sees_its_gpu_alone(visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [environment(rank)["CUDA_VISIBLE_DEVICES"] for rank in range(2)] == expected
