# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Begin of a kernel that is set up while the previous one ends (`device_info.dependent_launch`)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr):
    """Let the next kernel be set up, then wait until the writes of the previous ones are visible."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
