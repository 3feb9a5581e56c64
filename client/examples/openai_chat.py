"""The `openai` package against this server: a chat, streamed, with a tool that the model must call."""

import json
import os
from typing import Any

from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Seoul", "Recife"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

client = OpenAI(
    base_url=os.environ.get("SPLITFUSE_BASE_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("SPLITFUSE_API_KEY", "none"),
)
with client:
    model = client.models.list().data[0].id

    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=32, stream=True
    )
    for chunk in chat:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Is it sunny in Seoul?"}],
        max_tokens=64,
        tools=[WEATHER],
        tool_choice="required",
    )
    for call in answer.choices[0].message.tool_calls or ():
        if call.type == "function":
            print("call:", call.function.name, json.loads(call.function.arguments))
