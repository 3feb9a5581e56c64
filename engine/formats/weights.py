"""Sources of weights: safetensors files, sharded or not, or seeded random weights of the same shapes.

A model takes the tensors it needs by checkpoint name. A tensor is read when it is taken, into memory of its own, so
later changes of the files do not affect a running server.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...kernels.ops import QuantizedWeight
from ..device import stream_of
from ..errors import ConfigError, is_out_of_memory
from .checkpoint import version_of
from .json_file import read_json
from .tensor_entry import WIDE, TensorEntry, read_tensor, tensor_entries

if TYPE_CHECKING:
    from .checkpoint_format import CheckpointFormat
    from .weight_reader import WeightReader
import sys
from collections.abc import Callable

_DELAY_S = 1.0


@contextmanager
def with_progress(source: Any, *, total: int | None) -> Iterator[Any]:
    """Yield the WeightSource with a bar of taken tensors out of `total` (None: unknown).

    There is no bar if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield source
        return
    from tqdm import tqdm

    with tqdm(total=total, desc="loading", unit=" tensors", delay=_DELAY_S, leave=False) as bar:
        yield _Counted(source, bar.update)


class _Counted:
    """WeightSource that calls `count` with True when a tensor is taken for the first time."""

    def __init__(self, source: Any, count: Callable[[int], object]) -> None:
        self._source = source
        self._count = count
        self._taken_names: set[str] = set()
        self.has = source.has
        self.unread = source.unread

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._note(name)
        tensor: Tensor = self._source.take(name, shape)
        return tensor

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        self._note(name)
        weight: QuantizedWeight | None = self._source.take_quantized(name, shape)
        return weight

    def _note(self, name: str) -> None:
        self._count(name not in self._taken_names)
        self._taken_names.add(name)


INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class WeightSource(Protocol):
    """Source of a checkpoint's tensors by name. On a CPU several threads use it at once."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor in the model's dtype; a name in WIDE keeps the files' dtype.

        Raises ConfigError if it is missing or has another shape.
        """

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        """Return a quantized weight [N, K]; None if the files do not quantize it. Raises like `take`."""

    def has(self, name: str) -> bool:
        """True if there is a tensor of this name; some weights have two names."""

    def unread(self) -> list[str]:
        """Return the names that have not been taken."""


class SafetensorsSource:
    """Source of a folder's safetensors. Refuses pickles (.bin, .pt) with the way to convert them."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        quantization: "CheckpointFormat | None" = None,
        reads_ahead_to: torch.device | None = None,
    ) -> None:
        """`reads_ahead_to`: device to which several threads copy all tensors from now on."""
        self._dtype = dtype
        self._quantization = quantization
        self._num_quantized = 0
        self._reader: WeightReader | None = None
        self._files: dict[Path, Any] = {}  # opened for checks and tensor names only
        self._versions: dict[Path, tuple[int, ...]] = {}  # version_of each file when it was opened
        self._entries: dict[tuple[Path, str], TensorEntry] = {}
        self._file_of_name: dict[str, Path] = {}
        self._taken_names: set[str] = set()
        self._opening = threading.Lock()
        for path, names in files_and_names(folder):
            for name in names if names is not None else self._open(path).keys():
                self._file_of_name[name] = path
        self._where = folder
        if reads_ahead_to is not None:
            self._reader = self._read_ahead(reads_ahead_to)

    def _read_ahead(self, device: torch.device) -> "WeightReader":
        """Start reading the tensors that the index names; the files may hold more."""
        from .weight_reader import WeightReader  # here: a CPU reads a tensor when it packs it

        for path in dict.fromkeys(self._file_of_name.values()):
            self._open(path)
        entries = [entry for (path, name), entry in self._entries.items() if self._file_of_name.get(name) == path]
        entries.sort(key=lambda entry: _load_order(entry.name))
        return WeightReader(entries, device=device, stream=stream_of(device))

    def check(self) -> None:
        """Raise ConfigError if a file changed after it was opened: tensors may come from both versions.

        Also raises ConfigError if config.json declares a quantization that no weight has.
        """
        for path, version in self._versions.items():
            if version_of(path) != version:
                raise ConfigError(f"{path} was changed while it was read; start again when it is whole")
        if self._quantization is not None and not self._num_quantized:
            said = self._quantization.name
            raise ConfigError(f"{self._where}: no weight is quantized as config.json says ({said}); fetch it again")

    def close(self) -> None:
        """Stop reading and close the files."""
        if self._reader is not None:
            self._reader.close()
        self._files.clear()

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if (quantized := self.take_quantized(name, shape)) is not None:
            return quantized.dequantized().to(self._dtype)
        tensor = self._take(name)
        path = self._file_of_name[name]
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{path}: {name} has shape {list(tensor.shape)}, but config.json needs {list(shape)}; "
                "the files do not belong together"
            )
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ConfigError(f"{path}: {name} is {tensor.dtype}, and config.json does not say how it is quantized")
        return tensor if name.endswith(WIDE) else tensor.to(self._dtype)

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        if self._quantization is None or len(shape) != 2 or not name.endswith(".weight"):
            return None
        from .checkpoint_format import LinearTensors  # here: plain weights need no format

        linear = LinearTensors(name.removesuffix(".weight"), self.has, self._take)
        weight = self._quantization.weight(linear, (shape[0], shape[1]))
        self._num_quantized += weight is not None
        return weight

    def _take(self, name: str) -> Tensor:
        """Take a tensor in the files' dtype and shape."""
        path = self._file_of_name.get(name)
        if path is None:
            raise ConfigError(f"{self._where}: no tensor {name!r} in the weights; do they belong to this config.json?")
        try:
            reader = self._reader
            is_ahead = reader is not None and reader.has(name)
            tensor: Tensor = reader.take(name) if reader and is_ahead else self._read(path, name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as exc:
            if is_out_of_memory(exc):
                raise  # the file is not at fault
            raise ConfigError(f"{path}: tensor {name!r} cannot be read ({exc}); fetch the file again") from exc
        self._taken_names.add(name)
        return tensor

    def has(self, name: str) -> bool:
        return name in self._file_of_name

    def unread(self) -> list[str]:
        left, how = sorted(self._file_of_name.keys() - self._taken_names), self._quantization
        return left if how is None else [name for name in left if not how.ignores(name, self._take)]

    def _read(self, path: Path, name: str) -> Tensor:
        file = self._open(path)
        entry = self._entries.get((path, name))
        # A tensor without an entry is missing or has a dtype that `take` refuses; mapping it reads no data.
        return file.get_tensor(name) if entry is None else read_tensor(entry)

    def _open(self, path: Path) -> Any:
        with self._opening:
            if path not in self._files:
                if not path.exists():
                    raise ConfigError(f"{path} is missing, but {INDEX_FILE} names it; fetch the file again")
                try:
                    self._versions[path] = version_of(path)
                    self._files[path] = safe_open(str(path), framework="pt", device="cpu")  # its checks are stricter
                except (SafetensorError, OSError, ValueError) as exc:
                    raise ConfigError(f"{path} is not a whole safetensors file ({exc}); fetch the file again") from exc
                self._entries |= {(path, entry.name): entry for entry in tensor_entries(path)}
            return self._files[path]


def _load_order(name: str) -> tuple[bool, list[str | int]]:
    """Return a sort key: layers by number, the head last, nearly as a model takes them. Files put layer 10 before 2."""
    parts = re.split(r"(\d+)", name)  # text and numbers in turn
    return name.startswith("lm_head"), [int(part) if part.isdigit() else part for part in parts]


def files_and_names(folder: Path) -> Iterator[tuple[Path, list[str] | None]]:
    """Yield a folder's weight files, each with its tensors' names if an index lists them."""
    index = folder / INDEX_FILE
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ConfigError(f"{index} has no weight_map; fetch the file again")
        for file in weight_map.values():
            if not isinstance(file, str) or Path(file).name != file:
                raise ConfigError(f"{index} names a file outside of its folder: {file!r}")
        for file in sorted(set(weight_map.values())):
            yield folder / file, [name for name, where in weight_map.items() if where == file]
    elif (folder / SINGLE_FILE).exists():
        yield folder / SINGLE_FILE, None
    else:
        raise ConfigError(_missing_weights(folder))


def _missing_weights(folder: Path) -> str:
    pickled = sorted(path.name for ending in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{ending}"))
    if pickled:
        return (
            f"{folder / pickled[0]} is a pickle, which can run code when it is read; convert it where you trust it: "
            f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    from .missing_model import other_format  # here: most folders have weights

    if what := other_format(folder):
        return what
    return f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; for random weights use --load-format dummy"


# Families' names of norms: input_layernorm, q_norm, ln_1, ln_f, norm_f, self_attn_layer_norm, q_layernorm.norms.3.
_NORM = re.compile(r"(norm(_\d)?|norm_f|\bln_\w+|\bnorms\.\d+)\.weight$")


class DummySource:
    """Source of seeded random weights for measurements: normal, 0.02 wide; norms are ones, biases zeros."""

    def __init__(self, *, dtype: torch.dtype, seed: int, device: torch.device | None = None) -> None:
        """`device` generates the weights: 16 GB take a GPU a moment, a CPU a minute; their numbers differ."""
        self._dtype = dtype
        self._seed = seed
        self._device = device or torch.device("cpu")

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if _NORM.search(name):
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        if name.endswith(".bias"):
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        # Keyed by name, so that a tensor does not depend on the order of the calls.
        key = int.from_bytes(hashlib.sha256(f"{self._seed}/{name}".encode()).digest()[:8], "big") >> 1
        generator = torch.Generator(self._device).manual_seed(key)
        return torch.empty(shape, dtype=self._dtype, device=self._device).normal_(0.0, 0.02, generator=generator)

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        return None

    def has(self, name: str) -> bool:
        return True

    def unread(self) -> list[str]:
        return []


@contextmanager
def weight_source(
    folder: Path,
    *,
    load_format: str,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
    quantization: "CheckpointFormat | None" = None,
    is_text_part: bool = False,
) -> Iterator[WeightSource]:
    """Yield the source for --load-format and close its files at the end. Raises ConfigError if they changed meanwhile.

    Several threads bring the tensors to a GPU. A CPU reads a tensor when it packs it.
    """
    if load_format == "dummy":
        yield DummySource(dtype=dtype, seed=seed, device=device)
        return
    source: Any  # a WeightSource with `check` and `close`
    if folder.is_file():
        from .gguf.source import GgufSource  # here: most models are folders

        source = GgufSource(folder, dtype=dtype)
    else:
        ahead = device if device.type == "cuda" else None
        source = SafetensorsSource(folder, dtype=dtype, quantization=quantization, reads_ahead_to=ahead)
    try:
        with with_progress(source, total=None if quantization else len(source.unread())) as counted:
            if is_text_part:
                from .text_part import TextPart  # here: most models are text alone

                yield TextPart(counted)
            else:
                yield counted
        source.check()
    finally:
        source.close()
