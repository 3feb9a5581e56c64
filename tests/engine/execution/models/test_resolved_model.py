"""The device that serves, cards that are refused by name, and kernels of other packages."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.resolved_model import resolve_device


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("name", "capability", "hip", "said"),
    [
        ("Tesla T4", (7, 5), None, "Tesla T4 has compute capability 7.5: the kernels need 8.0 (Ampere) or newer"),
        ("AMD Instinct MI300X", (9, 4), "6.2", "AMD Instinct MI300X is an AMD GPU"),
        ("NVIDIA A100", (8, 0), None, ""),
    ],
)
def test_a_card_that_cannot_serve_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, device: str, name: str, capability: tuple[int, int], hip: str | None, said: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: name)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: capability)
    monkeypatch.setattr("torch.version.hip", hip)
    if not said:
        assert resolve_device(device).type == "cuda"
        return
    with pytest.raises(ConfigError) as refused:
        resolve_device(device)
    assert str(refused.value).startswith(said)
    assert str(refused.value).endswith("--device cpu works")
