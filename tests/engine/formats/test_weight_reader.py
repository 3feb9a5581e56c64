"""The parallel reader returns every tensor complete, in any order and with any number of threads."""

import json
import os
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from simulated_stream import SimulatedStream
from tiny_models import save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.device import ImmediateStream
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats import weights
from splitfuse.engine.formats.tensor_entry import TensorEntry, tensor_entries
from splitfuse.engine.formats.weight_reader import WeightReader
from splitfuse.engine.formats.weights import SafetensorsSource

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model in three files."""
    folder = tmp_path_factory.mktemp("sharded")
    save_model("llama-mha", folder, shards=3)
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    return tensors


@pytest.mark.parametrize(("num_threads", "chunk_bytes"), [(1, 2**20), (4, 1000), (8, 4096)])
def test_every_tensor_is_whole(folder: Path, num_threads: int, chunk_bytes: int) -> None:
    entries = [entry for path in sorted(folder.glob("*.safetensors")) for entry in tensor_entries(path)]
    expected = tensors_of(folder)
    assert {entry.name for entry in entries} == set(expected)
    reader = WeightReader(
        entries, device=CPU, stream=ImmediateStream(), num_threads=num_threads, chunk_bytes=chunk_bytes
    )
    for name in random.Random(0).sample(sorted(expected), len(expected)):
        assert torch.equal(reader.take(name), expected[name])
        assert not reader.has(name), "it is held no longer than until it is taken"
    reader.close()


def test_reads_go_on_beside_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, right = threading.Barrier(3), os.preadv
    met = threading.local()

    def meets_the_others(*args: Any) -> int:
        if not getattr(met, "has", False):
            met.has = True
            together.wait(timeout=60)  # raises if there are never three readers
        return right(*args)

    monkeypatch.setattr("splitfuse.engine.formats.weight_reader.os.preadv", meets_the_others)
    entries = [entry for path in folder.glob("*.safetensors") for entry in tensor_entries(path)]
    reader = WeightReader(entries, device=CPU, stream=ImmediateStream(), num_threads=3)
    for name, tensor in tensors_of(folder).items():
        assert torch.equal(reader.take(name), tensor)
    reader.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_buffer_is_written_again_only_when_the_device_has_copied_it(folder: Path, waits: bool) -> None:
    class NoEvent:
        def wait(self) -> None:
            pass

    class Stream(SimulatedStream):
        def record(self) -> Any:
            return super().record() if waits else NoEvent()

    stream = Stream(random.Random(0), laziness=1.0)
    entries = [entry for path in folder.glob("*.safetensors") for entry in tensor_entries(path)]
    reader = WeightReader(entries, device=CPU, stream=stream, num_threads=1, chunk_bytes=1000)
    tensors = {entry.name: reader.take(entry.name) for entry in entries}
    stream.synchronize()
    same = [torch.equal(tensors[name], tensor) for name, tensor in tensors_of(folder).items()]
    assert all(same) == waits
    reader.close()


def test_a_model_read_ahead_says_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = LLM(str(folder), dtype="float32", device="cpu").generate([list(range(20, 60))], params)
    sources: list[Any] = []

    def ahead(folder: Path, *, dtype: torch.dtype, reads_ahead_to: object, quantization: object) -> SafetensorsSource:
        sources.append(SafetensorsSource(folder, dtype=dtype, reads_ahead_to=CPU))
        return sources[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(weights, "SafetensorsSource", ahead)
    outputs = LLM(str(folder), dtype="float32", device="cpu").generate([list(range(20, 60))], params)
    assert outputs[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    assert not any(thread.is_alive() for thread in sources[0]._reader._threads)


def test_tensors_not_taken_do_not_keep_it_from_closing(folder: Path) -> None:
    source = SafetensorsSource(folder, dtype=torch.float32, reads_ahead_to=CPU)
    name = next(iter(tensors_of(folder)))
    source.take(name, tuple(tensors_of(folder)[name].shape))
    source.close()
    assert source._reader is not None
    assert not any(thread.is_alive() for thread in source._reader._threads)


def test_a_file_that_shrinks_is_told(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4096)}, tmp_path / "model.safetensors")
    entries = list(tensor_entries(tmp_path / "model.safetensors"))
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    reader = WeightReader(entries, device=CPU, stream=ImmediateStream(), num_threads=1)
    with pytest.raises(ValueError, match="bytes early"):
        reader.take("a")
    reader.close()


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"a": {"dtype": "F32", "shape": [2]}},
        ["a"],
    ],
)
def test_a_header_that_lies_is_refused(header: Any, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "bad.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        list(tensor_entries(tmp_path / "bad.safetensors"))


def entries_of(path: Path, **sizes: int) -> list[TensorEntry]:
    """Write a file with tensors of these numbers of elements."""
    save_file({name: torch.full((size,), float(index)) for index, (name, size) in enumerate(sizes.items())}, path)
    return sorted(tensor_entries(path), key=lambda entry: list(sizes).index(entry.name))


def test_no_more_than_the_limit_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"t{index}": 100 * (1 + index % 3) for index in range(40)}
    entries = entries_of(tmp_path / "model.safetensors", **sizes)
    read, begun, most = WeightReader._read, set[str](), 0
    taken: set[str] = set()

    def counted(self: WeightReader, entry: TensorEntry, *args: Any) -> torch.Tensor:
        nonlocal most
        begun.add(entry.name)
        wanted = next(name for name in order if name not in taken)
        most = max(most, sum(4 * sizes[name] for name in begun - taken - {wanted}))
        return read(self, entry, *args)

    monkeypatch.setattr(WeightReader, "_read", counted)
    order = random.Random(3).sample(list(sizes), len(sizes))  # the worst case
    reader = WeightReader(entries, device=CPU, stream=ImmediateStream(), num_threads=3, max_bytes_ahead=5000)
    for name in order:
        assert reader.take(name).tolist() == [float(list(sizes).index(name))] * sizes[name]
        taken.add(name)
    reader.close()
    assert 2000 < most <= 5000


def test_a_tensor_larger_than_the_limit_comes_too(tmp_path: Path) -> None:
    entries = entries_of(tmp_path / "model.safetensors", small=10, large=10_000)
    reader = WeightReader(entries, device=CPU, stream=ImmediateStream(), max_bytes_ahead=100)
    assert len(reader.take("large")) == 10_000
    assert len(reader.take("small")) == 10
    reader.close()


def test_a_reader_that_waits_for_room_can_be_closed(tmp_path: Path) -> None:
    entries = entries_of(tmp_path / "model.safetensors", a=10, b=1000)
    reader = WeightReader(entries, device=CPU, stream=ImmediateStream(), max_bytes_ahead=50)
    reader.close()
    assert not any(thread.is_alive() for thread in reader._threads)


def test_a_thread_that_waits_for_room_holds_no_tensor(tmp_path: Path) -> None:
    entries = entries_of(tmp_path / "model.safetensors", a=10, b=10, c=1000)
    reader = WeightReader(entries, device=CPU, stream=ImmediateStream(), num_threads=1, max_bytes_ahead=100)
    reader.take("b")
    taken = weakref.ref(reader.take("a"))
    assert taken() is None
    reader.close()


def test_layers_are_read_by_their_numbers_and_the_head_last() -> None:
    names = [
        "lm_head.weight",
        "model.layers.10.a",
        "model.layers.2.b",
        "model.norm.weight",
        "model.embed_tokens.weight",
    ]
    first, second, *_, norm, head = sorted(names, key=weights._load_order)
    assert (first, second) == ("model.embed_tokens.weight", "model.layers.2.b")
    assert (norm, head) == ("model.norm.weight", "lm_head.weight")
