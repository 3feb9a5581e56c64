"""Second call: why. Exact bits, the kernels of a step, counters, a sanitizer. Ten minutes, at most eight files in $OUT.

python3 tests/gpu/calls/second.py [--seconds 580] [--dry] [FILE of kernel tests, again …]
"""

from steps import Steps

METRICS = "sm__inst_issued.avg.per_cycle_active,dram__throughput.avg.pct_of_peak_sustained_elapsed"
KERNELS = "regex:_decode|_merge_pieces|_few_rows|_quantized|_exact_linear|_grouped"


def main() -> None:
    steps = Steps(__doc__.splitlines()[0], seconds=580)
    tiny = ["--device", "cpu"] if steps.is_dry else []
    steps.python("exact bits", "calls/exact.py", *tiny, limit=90)
    if not steps.is_dry:
        kinds = ("int4", "int8", "fp8")
        steps.python("exact bits of packed weights", "calls/exact.py", "--quantization", *kinds, limit=60)
    # The mixture needs 61 GB. predictions.py has 3.8 ms for a token of it at 4,250 GB/s, where 1.45 are the limit.
    shapes = [("qwen3-30b-a3b", 1), ("llama-3.1-8b", 1), ("llama-3.1-8b", 32)]
    for shape, rows in [("tiny", 2), ("tiny-mixture", 2)] if steps.is_dry else shapes:
        arguments = [shape, *["--scale", "16"] * steps.is_dry, *tiny, "--rows", str(rows)]
        if steps.python(f"profile of {shape}, {rows} rows", "step_profile.py", *arguments, limit=110):
            (steps.folder / "profile.json").rename(steps.folder / f"profile-{shape}-{rows}.json")
    ncu = ["ncu", "--clock-control", "none", "--metrics", METRICS, "-k", KERNELS]
    launches = ["--dry"] if steps.is_dry else []
    steps.python("counters", "calls/launches.py", *launches, limit=120, under=[] if steps.is_dry else ncu)
    checker = [] if steps.is_dry else ["compute-sanitizer", "--tool", "memcheck"]
    steps.python("sanitizer", "parity.py", "--tokens", "3", *tiny, limit=150, under=checker)
    profiles = sorted(path.name for path in steps.folder.glob("profile-*.json"))
    steps.keep("exact.json", *profiles, "bench-parity.json")


if __name__ == "__main__":
    main()
