"""First call: correctness, then the table of `make gpu`. Ten minutes, at most eight files in $OUT.

python3 tests/gpu/calls/first.py [--seconds 560] [--dry]
"""

from steps import Steps


def main() -> None:
    steps = Steps(__doc__.splitlines()[0], seconds=560)
    steps.run("the GPU", "nvidia-smi", limit=20)
    seconds = max(steps.left - 20, 1)
    steps.python(
        "make gpu",
        "run.py",
        "--seconds",
        str(seconds),
        *["--dry"] * steps.is_dry,
        limit=3 * seconds if steps.is_dry else steps.left,
    )
    steps.keep("gpu.json", "failures.txt")  # gpu.json has all other files


if __name__ == "__main__":
    main()
