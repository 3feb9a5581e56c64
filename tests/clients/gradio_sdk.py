"""`gradio.load_chat` against a scripted server: `python tests/clients/gradio_sdk.py BASE_URL`."""

import os
import sys

os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}

import gradio
from checks import ANSWER, QUESTION, follow, key, main, model_of
from gradio_client import Client


class Checks:
    """Checks of the client, through its own web server: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def whole(self) -> None:
        self._chat(streaming=False)

    def streamed(self) -> None:
        self._chat(streaming=True)

    def _chat(self, *, streaming: bool) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        options = {"file_types": None, "streaming": streaming, "api_name": "chat"}
        page = gradio.load_chat(f"{self._url}/v1", self._name, key(), **options)
        _, local, _ = page.launch(prevent_thread_lock=True, quiet=True)
        try:
            assert Client(local, verbose=False).predict(QUESTION, api_name="/chat") == ANSWER
        finally:
            page.close()


if __name__ == "__main__":
    sys.exit(main(Checks, "gradio"))
