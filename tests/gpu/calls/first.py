"""First call: families and formats beside the CPU, then the table of `make gpu`. Ten minutes, eight files in $OUT.

python3 tests/gpu/calls/first.py [--seconds 560] [--dry]
"""

from steps import Steps


def main() -> None:
    steps = Steps(__doc__.splitlines()[0], seconds=560)
    steps.run("the GPU", "nvidia-smi", limit=20)
    dry = ["--device", "cpu", "--only", "llama-gqa-tied", "awq"] if steps.is_dry else []
    steps.python("families", "families.py", *dry, limit=180)
    seconds = max(steps.left - 20, 1)
    steps.python(
        "make gpu",
        "run.py",
        "--seconds",
        str(seconds),
        *["--dry"] * steps.is_dry,
        limit=3 * seconds if steps.is_dry else steps.left,
    )
    steps.keep("gpu.json", "failures.txt", "families.txt", "families.json")  # gpu.json has all other files


if __name__ == "__main__":
    main()
