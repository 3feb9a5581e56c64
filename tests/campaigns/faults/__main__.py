"""`make faults`: causes every fault in a real process and prints the promise and the observation.

`ARGS="R5 R19"` for some faults. Exit code 1 if a promise did not hold.
"""

import argparse
import sys

from faults import attack_faults, engine_faults, http_faults, overload_faults, process_faults
from faults.fault import Fault, Seen

_MODULES = (engine_faults, process_faults, http_faults, overload_faults, attack_faults)
FAULTS = tuple(fault for module in _MODULES for fault in module.FAULTS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="R1, A2, …; none = all")
    names = parser.parse_args().names
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    num_held = 0
    print("| | fault | promise | held | seen |\n|---|---|---|---|---|", flush=True)
    for fault in sorted(chosen, key=lambda fault: (fault.name[0], int(fault.name[1:]))):
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
