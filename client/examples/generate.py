"""Submit a prompt and wait for the result; then submit without waiting and look at the result later.

Needs a running server: `splitfuse serve`. SPLITFUSE_BASE_URL and SPLITFUSE_API_KEY say where it is, if not here.
"""

from splitfuse.client import Client

with Client() as client:
    result = client.generate("Once upon a time", max_tokens=32, temperature=0)
    print(result.text)
    print(f"{result.usage.completion_tokens} tokens in {result.timings.e2e_s:.2f} s, ended by {result.finish_reason}")

    job = client.submit("The little dog", max_tokens=32)
    print(f"submitted as {job.seq_id}: {job.result(wait=0).status}")
    print(job.result().text)
