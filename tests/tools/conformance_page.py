"""Writes server/docs/conformance.md from a run of the tests against what others have published.

`--print` leaves the page alone. Other arguments go to pytest. Fails if a test failed.
"""

import os
import re
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "server/docs/conformance.md"
# What is counted -> its test, and the file of the test.
ROWS = {
    "types of tensors: 10,000 random blocks equal the `gguf` package's to the bit": (
        "formats/gguf/test_blocks.py",
        "test_random_blocks_are_dequantized_to_the_bit",
    ),
    "types of tensors, and a mix of all: a model's tokens equal transformers' on the same values": (
        "behaviour/test_gguf_models.py",
        "test_every_type_is_served_as_its_values_are",
    ),
    "names of word splits: ids equal llama.cpp's": (
        "formats/gguf/behaviour/test_published_vocabularies.py",
        "test_a_word_split_gives_the_expected_ids",
    ),
    "vocabularies of real models: ids equal those of llama.cpp's own test": (
        "formats/gguf/behaviour/test_published_vocabularies.py",
        "test_a_vocabulary_gives_the_expected_ids",
    ),
    "models in GGUF: tokens equal transformers'": (
        "behaviour/test_gguf_models.py",
        "test_greedy_tokens_equal_transformers|test_other_names_of_a_family_give_its_tokens",
    ),
    "forms of the files of 90 models that a local server offers: open and generate": (
        "behaviour/test_published_models.py",
        "test_a_file_of_each_form_opens_and_generates",
    ),
    "models with images or sound: the text part's tokens equal transformers'": (
        "execution/models/test_wrappers.py",
        "test_a_wrapper_s_text_gives_transformers_tokens",
    ),
    "encoders in GGUF: embeddings and scores equal transformers'": ("behaviour/test_pooling.py", "test_a_gguf_file"),
    "quantized checkpoints: tokens equal transformers' on the same values": (
        "behaviour/test_quantized_checkpoints.py",
        "test_tokens_and_logits|test_w8a8",
    ),
}
HEAD = """# See which published files open

`make conformance` runs the tests below against files that others have published, or that other packages write, and
writes this page. Vocabularies, ids and the list of models stand in a folder beside the clone, not in the project.
Run of {date}:

| what | equal | failed | skipped |
|---|---:|---:|---:|
"""
REFUSED = """
## What is refused

Each by one line that says why:

"""
OTHERS = (
    "types of tensors without weights: integers, F64, Q8_1, Q8_K",
    "encoders of images (`mmproj`), control vectors, importance matrices; adapters, which `--enable-lora` takes",
    "big-endian files, and formats of before August 2023",
    "layers that predict more than one token: the rest of their model is served",
)


class Outcomes:
    """Outcomes of a run's tests, by row."""

    def __init__(self) -> None:
        self.counts = {row: Counter[str]() for row in ROWS}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: its call, or a set-up that did not pass."""
        if report.when != "call" and (report.when != "setup" or report.passed):
            return
        file, _, test = report.nodeid.partition("::")
        for row, (path, pattern) in ROWS.items():
            if file.endswith(path) and re.match(pattern, test):
                self.counts[row][report.outcome] += 1


def page(outcomes: Outcomes) -> str:
    """Return the page."""
    sys.path[:0] = [str(TESTS / "engine/behaviour"), str(TESTS / "support")]
    from test_published_models import NOT_SERVED

    lines = (
        f"| {row} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |\n"
        for row, counts in outcomes.counts.items()
    )
    refused = (*OTHERS, *(f"{name}: {why}" for name, why in NOT_SERVED.items()))
    return HEAD.format(date=date.today()) + "".join(lines) + REFUSED + "".join(f"- {text}\n" for text in refused)


def main() -> int:
    """Run the tests and write the page."""
    os.environ["SPLITFUSE_TEST_ALL"] = "1"
    outcomes, files = Outcomes(), sorted({str(TESTS / "engine" / path) for path, _ in ROWS.values()})
    own = [argument for argument in sys.argv[1:] if argument != "--print"]
    code = int(pytest.main(["-q", "-rs", *files, *own], plugins=[outcomes]))
    text = page(outcomes)
    print(text)
    if "--print" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
