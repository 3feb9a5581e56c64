"""Call for a machine with two GPUs: nothing of this has run on one. Ten minutes, at most eight files in $OUT.

    python3 tests/gpu/calls/ranks.py [--seconds 580] [--dry]

| part | must come back | if not |
|---|---|---|
| the GPUs | NV or PIX between them | PHB, SYS: exchanges go through the host; figures will be poor |
| answers | three paths 1.0, replays above 0 | plain alone wrong: row_parallel.py or process_group.py; asynchronous: the
  broadcast of ids; graphs alone: NCCL in a capture (`--enforce-eager` serves meanwhile); a hang: NCCL_DEBUG=INFO |
| exact | 0.0 changed | the order of sums: process_group.py, in_order; until it is 0.0 the banner says inexact |
| a lost rank | the rank's name within 10 s | NCCL's abort does not return: the server still ends, llm.generate hangs |
| figures | an 8B on two GPUs below 0.65 of one's ms | 65 exchanges a step: step_profile.py |
"""

from steps import Steps


def main() -> None:
    steps = Steps(__doc__.splitlines()[0], seconds=580)
    if not steps.is_dry:
        steps.run("the GPUs", "nvidia-smi", "topo", "-m", limit=20)
    device = ["--device", "cpu"] if steps.is_dry else []
    tiny = ["--shape", "tiny"] if steps.is_dry else []
    for name, limit, script, *arguments in (
        ("answers", 180, "two_gpus.py", "answers"),
        ("a lost rank", 60, "two_gpus.py", "lost"),
        ("figures", 150, "two_gpus.py", "figures", *tiny),
        ("exact", 180, "two_gpus.py", "exact"),
    ):
        steps.python(name, script, *arguments, *device, limit=limit)
    steps.keep(*(f"ranks-{name}.json" for name in ("answers", "figures", "exact", "lost")))


if __name__ == "__main__":
    main()
