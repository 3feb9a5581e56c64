"""Runs the checks of one client: the public methods of an object, in their order."""

import traceback
from importlib.metadata import version


def run(package: str, checks: object) -> int:
    """Print the package's version and a line per check; the exit code, 1 if one failed."""
    print(f"{package} {version(package)}")
    num_failed = 0
    for name in [name for name, value in vars(type(checks)).items() if callable(value) and name[0] != "_"]:
        try:
            getattr(checks, name)()
            print(f"ok    {name}", flush=True)
        except Exception:
            num_failed += 1
            print(f"FAIL  {name}\n{traceback.format_exc()}", flush=True)
    return int(num_failed > 0)
