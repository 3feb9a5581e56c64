"""Output of a stated form: a choice, a regular expression, a JSON schema. One of them for each request.

Any model can; what a small one writes inside the form is nonsense.
"""

import json

from splitfuse.client import Client

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

with Client() as client:
    answer = client.generate("Was the dog happy? Answer:", structured_outputs={"choice": ["yes", "no"]})
    print("choice:", answer.text)

    answer = client.generate("It happened on", max_tokens=16, structured_outputs={"regex": r"20\d\d-[01]\d-[0-3]\d"})
    print("regex:", answer.text)

    answer = client.generate("A person as JSON:", max_tokens=64, structured_outputs={"json": SCHEMA})
    print("schema:", json.loads(answer.text))
