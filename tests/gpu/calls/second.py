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
    for rows in (2,) if steps.is_dry else (1, 32, 256):
        shape = ["tiny", "--scale", "16"] if steps.is_dry else []
        if steps.python(f"profile of {rows} rows", "step_profile.py", *shape, *tiny, "--rows", str(rows), limit=60):
            (steps.folder / "profile.json").rename(steps.folder / f"profile-{rows}.json")
    ncu = ["ncu", "--clock-control", "none", "--metrics", METRICS, "-k", KERNELS]
    launches = ["--dry"] if steps.is_dry else []
    steps.python("counters", "calls/launches.py", *launches, limit=120, under=[] if steps.is_dry else ncu)
    checker = [] if steps.is_dry else ["compute-sanitizer", "--tool", "memcheck"]
    steps.python("sanitizer", "parity.py", "--tokens", "3", *tiny, limit=150, under=checker)
    steps.keep("exact.json", *(f"profile-{rows}.json" for rows in (1, 2, 32, 256)), "bench-parity.json")


if __name__ == "__main__":
    main()
