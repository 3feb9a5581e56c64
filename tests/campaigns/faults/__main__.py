"""`make faults`: overloads a real process and prints the promise and the observation.

`ARGS="R22 R23"` for some faults. Exit code 1 if a promise did not hold. The suite has every fault that needs no quiet
machine.
"""

import argparse
import sys

from faults import crowd_faults, hostile_faults, overload_faults
from faults.overload_faults import Fault, Seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="R21 to R23, H1 to H9, C1 to C6; none = all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the crowds of C1 to C6")
    options = parser.parse_args()
    names, crowd_faults.scale = options.names, options.scale
    faults = (*overload_faults.FAULTS, *hostile_faults.FAULTS, *crowd_faults.FAULTS)
    chosen = [fault for fault in faults if not names or fault.name in names]
    num_held = 0
    print("| | fault | promise | held | seen |\n|---|---|---|---|---|", flush=True)
    for fault in chosen:
        seen = _seen(fault)
        num_held += seen.holds
        told = " ".join(seen.what.split())
        print(
            f"| {fault.name} | {fault.what} | {fault.promise} | {'yes' if seen.holds else 'NO'} | {told} |", flush=True
        )
    print(f"\n{num_held} of {len(chosen)} promises held")
    return int(num_held < len(chosen))


def _seen(fault: Fault) -> Seen:
    try:
        return fault.see()
    except Exception as exc:
        return Seen(False, f"{type(exc).__name__}: {str(exc)[-200:]}")


if __name__ == "__main__":
    sys.exit(main())
