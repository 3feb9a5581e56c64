"""Print the text while it is generated; leave, and attach to the same request again without missing a token.

A connection that breaks needs none of this: a stream re-attaches by itself.
"""

from splitfuse.client import Client

with Client() as client:
    job = client.submit("Once upon a time", max_tokens=32, temperature=0)

    last_event_id = None
    for event in job.stream():
        print(event.text, end="", flush=True)
        last_event_id = event.id
        if event.id == 9:
            break  # the request goes on; leaving client.stream() would cancel it
    print("|", end="")

    for event in client.job(job.seq_id).stream(starting_after=last_event_id):  # from any process that knows the id
        print(event.text, end="", flush=True)
    print()
