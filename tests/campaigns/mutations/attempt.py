"""Attempt to load a mutant and to use it, and what is wrong with the outcome."""

import contextlib
import time
import traceback
from pathlib import Path
from typing import Any

from splitfuse.engine import LLM
from splitfuse.engine.errors import ConfigError, InvalidRequestError, RequestFailedError
from splitfuse.server.process.log_format import MAX_LINE_CHARS, one_line

MAX_SECONDS = 3.0  # CPU time, because other processes share the cores
# Memory beyond twice the file: loading any model of this size, its cache, the allocator's reserve, and the angles of a
# context of millions of positions, which a file of 1 KB may have (341 MiB for 5.3 million of 16 numbers).
FREE_BYTES = 512 * 2**20
TEXTS = ("Once upon a time", "<s1> é\U0001f600\0\n", " " * 40 + "a" * 300)
LOADED = "loaded"
_SHORT: dict[str, Any] = {"num_kv_blocks": 8, "max_model_len": 32}


def outcome(path: Path, *, is_short: bool) -> str:
    """Load the model, and generate from texts and a conversation. Returns LOADED, or the refusal."""
    try:
        llm = LLM(str(path), max_num_seqs=2, num_threads=1, **(_SHORT if is_short else {}))
    except ConfigError as exc:
        return one_line(str(exc))  # as the command prints it
    with llm:
        _use(llm)
    return LOADED


def _use(llm: LLM) -> None:
    """Encode, decode and generate. A request that the model cannot take may be refused, and nothing else."""
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    prompts: list[str | list[int]] = [*TEXTS, [1, 2, 3]]
    if tokenizer.has_chat_template:
        with contextlib.suppress(InvalidRequestError):
            prompts.append(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))
    for prompt in prompts:
        try:
            (output,) = llm.generate([prompt], max_tokens=3)
        except InvalidRequestError:
            continue
        except RequestFailedError as exc:
            if "is not finite" in str(exc):
                continue  # weights of NaN and infinity fail requests, not the engine
            raise
        assert min(output.outputs[0].token_ids) >= 0
        tokenizer.decode(output.outputs[0].token_ids, skip_special_tokens=False)


def fault_of(outcome: str, *, seconds: float, num_bytes: int, grown_bytes: int) -> str | None:
    """Return the fault of an attempt that ended; None if it is as promised. `num_bytes`: size of the file."""
    if outcome != LOADED and not (outcome.isprintable() and 10 < len(outcome) < MAX_LINE_CHARS + 5):
        return f"the refusal is no clear line: {outcome!r}"
    if seconds > MAX_SECONDS:
        return f"took {seconds:.1f} s of CPU time: {outcome}"
    if grown_bytes > 2 * num_bytes + FREE_BYTES:
        return f"took {grown_bytes / 2**20:.0f} MiB for {num_bytes / 2**20:.1f}: {outcome}"
    return None


def attempt(path: Path, *, is_short: bool, num_bytes: int) -> tuple[str, str | None]:
    """Return the outcome of an attempt, and its fault if it has one. An exception of any kind is a fault."""
    before, begin = forget_peak(), time.process_time()
    try:
        seen = outcome(path, is_short=is_short)
    except BaseException as exc:
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        return "raised", f"{type(exc).__name__}: {str(exc)[:300]} ({frame.filename}, line {frame.lineno})"
    seconds, grown = time.process_time() - begin, peak_bytes() - before
    return seen, fault_of(seen, seconds=seconds, num_bytes=num_bytes, grown_bytes=grown)


def peak_bytes() -> int:
    """Return the peak memory of this process since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> int:
    """Reset the peak and return the current memory."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()
