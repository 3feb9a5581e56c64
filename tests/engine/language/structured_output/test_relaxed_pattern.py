"""Relaxed patterns that no grammar has: exact parts where possible, and never fewer texts than the pattern allows."""

import random
import re

import pytest

from splitfuse.engine.language.structured_output.relaxed_pattern import RelaxedPattern

PLAIN = ["", "a", "^a|b$", r"\(?=\)", "[(?=]a", r"a\\b", "(?:a|b)+", "(?P<n>a)", r"[^\]\b]", "a(b(c))*$"]
ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
RELAXED = {
    r"^(?=.*[A-Z])(?=.*\d).{3,}$": (True, True), r"^(?!a)(?!.*bb)[abc]+$": (False, True), r"\bab\b": (False, True),
    r"^(?=.*\bA)[ A-C]+$": (False, True), r"^a(?=b)[abc]+$": (False, False), r"^(?=a)b|c$": (False, False),
    r"(?<=a)b": (False, False), ZOD_EMAIL: (False, True),
}  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_other_patterns_stay_what_they_are(text):
    pattern = RelaxedPattern(text)
    assert pattern.is_enforced
    assert pattern.for_grammar == (text,)


@pytest.mark.parametrize("text", RELAXED)
def test_the_grammar_allows_all_that_matches_and_the_check_finds_the_rest(text):
    pattern = RelaxedPattern(text)
    assert (pattern.is_enforced, pattern.is_checked) == RELAXED[text]
    rng = random.Random(text)
    samples = ["".join(rng.choices("abcABC12 .@", k=rng.randint(0, 8))) for _ in range(3000)]
    for sample in [*samples, "x.y@example.com", ".x@example.com", "x..y@example.com"]:
        is_allowed = all(re.search(part, sample) for part in pattern.for_grammar)
        is_found = all(re.search(part, sample) for part in pattern.required)
        is_found = is_found and not any(re.search(part, sample) for part in pattern.excluded)
        if re.search(text, sample):
            assert is_allowed, sample
        if pattern.is_checked:
            assert is_found == bool(re.search(text, sample)), sample
        if pattern.is_enforced:
            assert is_allowed == is_found, sample
