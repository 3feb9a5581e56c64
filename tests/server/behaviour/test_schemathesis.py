"""Schemathesis sends what /openapi.json allows and what it does not: every answer must be a documented one."""

import os
import shutil
import subprocess

import pytest

SCHEMATHESIS = shutil.which("schemathesis")
NUM_EXAMPLES = os.environ.get("SPLITFUSE_TEST_EXAMPLES", "100")  # per operation
SECONDS = os.environ.get("SPLITFUSE_TEST_SECONDS", "180")
# A schema cannot say that a prompt has to fit the model, that an id has to be known or that two fields exclude each
# other, so not all that it allows succeeds. What it does not allow can be too long to be read at all.
CONFIG = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 404, 413]
"""


@pytest.mark.slow
@pytest.mark.timeout(float(SECONDS) + 600)
@pytest.mark.skipif(SCHEMATHESIS is None, reason="needs the command schemathesis: `make schemathesis` installs it")
def test_the_server_keeps_to_its_schema(live_server, tmp_path):
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [SCHEMATHESIS, "--config-file", str(config), "run", f"{live_server.url}/openapi.json"]
    command += ["--max-examples", NUM_EXAMPLES, "--max-time", SECONDS, "--request-timeout", "30"]
    command += ["--continue-on-failure", "--no-color", "--warnings", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:]
