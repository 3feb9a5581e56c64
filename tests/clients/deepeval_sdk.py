"""`deepeval` with a scripted server as its judge: `python tests/clients/deepeval_sdk.py BASE_URL`."""

import os
import sys

os.environ["DEEPEVAL_TELEMETRY_OPT_OUT"] = "YES"

from checks import ANSWER, QUESTION, follow, key, main, model_of
from deepeval.metrics import GEval
from deepeval.models import LocalModel
from deepeval.test_case import LLMTestCase, SingleTurnParams


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._model = LocalModel(model=model_of(url), base_url=f"{url}/v1", api_key=key())

    def text(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._model.generate(QUESTION)[0] == ANSWER

    def judge(self) -> None:
        follow(self._url, '{"score": 8, "reason": "It is short."}', marker="Be short", needs_tools=False)
        metric = GEval(
            name="brevity",
            evaluation_steps=["Be short."],
            evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT],
            model=self._model,
            async_mode=False,
        )
        metric.measure(LLMTestCase(input=QUESTION, actual_output=ANSWER), _show_indicator=False)
        assert (metric.score, metric.reason) == (0.8, "It is short.")


if __name__ == "__main__":
    sys.exit(main(Checks, "deepeval"))
