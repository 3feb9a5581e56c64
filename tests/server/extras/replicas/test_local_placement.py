"""The GPUs of replicas on one machine."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.extras.replicas import local_placement
from splitfuse.server.extras.replicas.local_placement import LocalPlacement


@pytest.mark.parametrize(("num_gpus_each", "expected"), [(1, ["0", "1", "2", "3"]), (2, ["0,1", "2,3"])])
def test_a_replica_has_as_many_gpus_as_ranks(
    num_gpus_each: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_placement, "visible_gpus", lambda: ("0", "1", "2", "3"))
    placement = LocalPlacement.of_machine(2, device="auto", num_gpus_each=num_gpus_each)
    assert list(placement._gpus) == expected


def test_too_few_gpus_are_refused_with_the_number_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_placement, "visible_gpus", lambda: ("0", "1", "2"))
    with pytest.raises(ConfigError, match="2 replicas need 2 GPUs each, and 3 can be used: --replicas 1"):
        LocalPlacement.of_machine(2, device="cuda", num_gpus_each=2)
