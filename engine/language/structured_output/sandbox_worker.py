"""Program of the process that tries grammars: each is compiled and walked in a forked child with limits.

A grammar that hangs, crashes or eats memory hurts only the child. The program is run by its path and imports no module
of ours; grammar_maker.py sends one JSON object per line and receives one for each. A child answers through a pipe of
its own, which closes when the child ends: so every end of a child shows as something to read, and no signal can be
missed.
"""

import itertools
import json
import os
import random
import selectors
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

# CPU seconds of a first try: easy grammars take 3 to 20 ms.
FIRST_TRY_S = 0.05
NUM_FIRST_TRIES = 2
# CPU seconds. A 64 KiB schema compiles in 50 to 400 ms. On idle cores a request must be answered within 2 s, and
# this is half of its work.
TIME_LIMIT_S = 1.2
# Beside busy steps a child, with its lower priority, has 0.75 s of a core in this time. Its end condemns no grammar.
WALL_LIMIT_S = 3.0
# More than the processors of a small machine would hold up the engine's steps, even at a lower priority.
NUM_SECOND_TRIES = min(4, max(2, (os.cpu_count() or 1) - 1))
# The last of 16 has its answer after 6 s, with two tries at once after 11 s, at worst, beside busy steps, after 27 s.
MAX_SLOW_WAITING = 16
MEMORY_LIMIT = 384 * 2**20
# The server's compiling threads have 8 MiB of stack: grammars that pass with 1 MiB never overflow those.
STACK_BYTES = 2**20
# CPU seconds for one mask. At 128,000 entries a mask takes 70 us on average and 1.4 ms at worst.
SLOW_MASK_S = 0.025
NUM_STEPS = 16
_MAX_REASON_CHARS = 300
_READ_BYTES = 2**16


class Lines:
    """Reader of lines from a file descriptor, without waiting for more than has arrived."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial = bytearray()  # incomplete line; a tokenizer's has 10 MB

    def read(self) -> list[bytes] | None:
        """Return the lines that are complete now; None at the end of the file. Blocks if nothing has arrived."""
        data = os.read(self._fd, _READ_BYTES)
        if not data:
            return None
        self._partial += data
        if b"\n" not in data:
            return []
        *lines, rest = bytes(self._partial).split(b"\n")
        self._partial = bytearray(rest)
        return lines


class Trial:
    """Child process that tries one grammar. Raises OSError if no more processes or pipes can be created."""

    def __init__(self, job: Any, tokenizer: Any, *, is_first: bool) -> None:
        self.job = job
        self.is_first = is_first
        self.fd, into = os.pipe()
        self._answer = b""
        try:
            self._process_id = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(into)
            raise
        if self._process_id == 0:
            _try_and_exit(job["job"]["grammar"], tokenizer, into=into, is_first=is_first)
        os.close(into)  # only the child can write now, so the pipe closes when it ends

    def read(self) -> dict[str, Any] | None:
        """Return the answer if the child has ended, else None. The answer is empty if a first try was too short."""
        data = os.read(self.fd, _READ_BYTES)
        self._answer += data
        if data:
            return None
        os.close(self.fd)
        _, status = os.waitpid(self._process_id, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        if self.is_first and exit_code in (-signal.SIGPROF, -signal.SIGALRM):
            return {}
        answer = _cause_of_death(exit_code) if status else json.loads(self._answer)
        return {"num_bytes": 0, "is_slow": not self.is_first, **answer}


class Trials:
    """Queue of grammars that are being tried or wait for a try.

    A first try is short, and grammars that take longer wait for a second try, so no easy grammar waits for slow ones.
    The newest grammar is tried first: behind 80 slow ones that came at once, an easy one would wait for 2 s or more.
    The owner with the fewest tries that run is next. Of too many slow grammars the owner with the most loses its last.
    """

    def __init__(self, selector: selectors.BaseSelector, tokenizer: Any) -> None:
        self._selector = selector
        self._tokenizer = tokenizer
        self._new: list[Any] = []  # newest first
        self._slow: list[Any] = []  # oldest first
        self._first, self._second = Counter[str](), Counter[str]()  # running first and second tries, by owner

    def add(self, job: Any) -> None:
        """Add a new grammar to the queue."""
        self._new.insert(0, job)

    def begin(self) -> None:
        """Start as many tries as may run at once."""
        while self._new and self._first.total() < NUM_FIRST_TRIES:
            self._begin(_next(self._new, self._first), is_first=True)
        while self._slow and self._second.total() < NUM_SECOND_TRIES:
            self._begin(_next(self._slow, self._second), is_first=False)

    def read(self, trial: Trial) -> None:
        """Read from a child that has written or ended."""
        answer = trial.read()
        if answer is None:
            return
        self._selector.unregister(trial.fd)
        (self._first if trial.is_first else self._second)[_owner(trial.job)] -= 1
        if answer:
            _answer(trial.job, **answer)
            return
        self._slow.append(trial.job)
        if len(self._slow) > MAX_SLOW_WAITING:
            greediest = Counter(map(_owner, reversed(self._slow))).most_common(1)[0][0]
            at = max(at for at, job in enumerate(self._slow) if _owner(job) == greediest)
            _answer(self._slow.pop(at), busy=MAX_SLOW_WAITING)

    def _begin(self, job: Any, *, is_first: bool) -> None:
        try:
            trial = Trial(job, self._tokenizer, is_first=is_first)
        except OSError as exc:
            _answer(job, unavailable=exc.strerror)
            return
        self._selector.register(trial.fd, selectors.EVENT_READ, trial)
        (self._first if is_first else self._second)[_owner(job)] += 1


def _owner(job: Any) -> str:
    return str(job["job"]["owner"])


def _next(jobs: list[Any], running: Counter[str]) -> Any:
    """Take the first job of an owner with the fewest tries that run."""
    return jobs.pop(min(range(len(jobs)), key=lambda at: running[_owner(jobs[at])]))


def main() -> None:
    """Try every grammar on stdin until stdin ends. The first line describes the tokenizer."""
    lines = Lines(sys.stdin.fileno())
    while not (received := lines.read()):
        if received is None:
            return
    tokenizer = _tokenizer(json.loads(received.pop(0)))
    # poll, unlike epoll, keeps no state in the kernel that the children would share.
    with selectors.PollSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        trials = Trials(selector, tokenizer)
        while received is not None:
            for line in received:
                trials.add(json.loads(line))
            trials.begin()
            received = []
            for key, _ in selector.select():
                if key.data is None:
                    received = lines.read()
                else:
                    trials.read(key.data)


def _answer(job: Any, **fields: Any) -> None:
    os.write(sys.stdout.fileno(), json.dumps({"id": job["id"], **fields}).encode() + b"\n")


def _tokenizer(setup: Any) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(setup["tokenizer"], n_vocab=setup["vocab_size"], eos_token=setup["eos_token_ids"])


def _cause_of_death(exit_code: int) -> dict[str, Any]:
    if exit_code == -signal.SIGALRM:
        return {"is_starved": True}
    if exit_code == -signal.SIGPROF:
        return {"error": f"it takes more than {TIME_LIMIT_S:g} s to compile; make it smaller"}
    return {"error": "it nests too deeply or takes too much memory to compile; make it smaller"}


def _shortened(error: str) -> str:
    """Return one line of a report: the text after "error:" or the first line; of a long one its start and its end."""
    lines = [line.strip() for line in error.splitlines()]
    text = next((line for line in lines if line.startswith("error: ")), lines[0]).removeprefix("error: ")
    half = _MAX_REASON_CHARS // 2
    return text if len(text) <= 2 * half else f"{text[:half]} … {text[-half:]}"


def _try_and_exit(grammar: str, tokenizer: Any, *, into: int, is_first: bool) -> NoReturn:
    is_done = threading.Event()

    def work() -> None:
        error, num_bytes = _try(grammar, tokenizer)
        os.write(into, json.dumps({"error": _shortened(error) if error else None, "num_bytes": num_bytes}).encode())
        is_done.set()

    try:
        _detach_standard_streams()
        _set_limits(is_first=is_first)
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        os._exit(not is_done.is_set())


def _detach_standard_streams() -> None:
    """Redirect to null: else the server would see the parent's end only with the child's, and each crash in its log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())


def _set_limits(*, is_first: bool) -> None:
    import resource

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S if is_first else WALL_LIMIT_S)
    signal.setitimer(signal.ITIMER_PROF, FIRST_TRY_S if is_first else TIME_LIMIT_S)
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # other systems ignore the limit, or count memory that is only reserved
        limit = _memory_bytes(0) + MEMORY_LIMIT
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _memory_bytes(field: int) -> int:
    """Return this process's bytes in a field of Linux's statm: 0 = addresses in use, 1 = resident. 0 elsewhere."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _try(grammar: str, tokenizer: Any) -> tuple[str, int]:
    """Return the reason why the grammar cannot be used ("" if it can), and the bytes it takes."""
    before = _memory_bytes(1)
    walk = Walk(grammar, tokenizer)
    reason = walk.error()
    return reason, max(0, _memory_bytes(1) - before)  # including the walk's matcher


class Walk:
    """Walk of a few random steps through a grammar, with each mask timed."""

    def __init__(self, grammar: str, tokenizer: Any) -> None:
        self._grammar = grammar
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._matcher = self._new_matcher()

    def error(self) -> str:
        """Take the steps. Return the error, or ""."""
        rng, matcher = random.Random(0), self._matcher
        while not matcher.is_error():
            mask, seconds = _timed_mask(matcher)
            if matcher.is_error():
                break
            if seconds > SLOW_MASK_S and (second := self._second_time()) > SLOW_MASK_S:
                seconds = min(seconds, second)
                return f"it takes {seconds * 1e3:.0f} ms for one token; at most {SLOW_MASK_S * 1e3:g} ms are given"
            token_id = any_token(mask, self._tokenizer.eos_tokens, rng)
            if token_id is None:
                return "" if self._token_ids else "only the empty text matches it"
            self._token_ids.append(token_id)
            matcher.consume_token(token_id)
            if matcher.is_stopped() or len(self._token_ids) == NUM_STEPS:
                break
        return str(matcher.get_error()) if matcher.is_error() else ""

    def _second_time(self) -> float:
        """Return the seconds of the last step in a new matcher, which has to compute the same states.

        The processor may have been taken away for a moment, and virtual machines count that as the thread's time.
        """
        matcher = self._new_matcher()
        for token_id in self._token_ids:
            matcher.consume_token(token_id)
        return _timed_mask(matcher)[1]

    def _new_matcher(self) -> Any:
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer, self._grammar, log_level=0, limits=limits())


def _timed_mask(matcher: Any) -> tuple[bytes, float]:
    """Return the next token's mask, and the CPU seconds that it took."""
    start = time.thread_time()
    mask = matcher.compute_bitmask()
    return mask, time.thread_time() - start


def any_token(mask: bytes, eos_token_ids: Sequence[int], rng: random.Random) -> int | None:
    """Return a random token that the mask allows, but no end token; None if there is none."""
    start = rng.randrange(len(mask))
    for index in itertools.chain(range(start, len(mask)), range(start)):
        if mask[index]:
            for bit in range(8):
                if mask[index] >> bit & 1 and index * 8 + bit not in eos_token_ids:
                    return index * 8 + bit
    return None


def limits() -> Any:
    """Return the bounds on a grammar's work, equal in the sandbox and in the server."""
    from llguidance import LLParserLimits

    # A state takes 1 to 2 kB, and each request has its own states; a string with a maxLength takes one per character.
    return LLParserLimits(max_lexer_states=100_000, verbose_errors=False)


if __name__ == "__main__":
    main()
