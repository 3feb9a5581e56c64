"""Look for known faults of dependencies, for dangerous calls and for secrets; list only what nobody has looked at yet.

`make audit` runs this with bandit, pip-audit and detect-secrets installed. The findings that were read are in _READ,
each with the reason why it may stay. A finding more in one of these files fails as well as one elsewhere.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_PACKAGES = ("client", "engine", "kernels", "server")
# bandit's findings of medium and high severity: (test, beginning of the path) -> number, reason.
_READ = {
    ("B610", "engine/"): (6, "a method of ours is called `extra`; it is not Django's"),
    ("B608", "server/results/durable/s"): (23, "joins constants and question marks, never a value"),
    ("B608", "server/results/shared/postgres_store.py"): (4, "joins constants and question marks, never a value"),
    ("B104", "client/hosts.py"): (1, "compares with 0.0.0.0, binds nothing"),
    ("B104", "server/process/banner.py"): (1, "compares with 0.0.0.0, binds nothing"),
    ("B104", "server/results/shared/__init__.py"): (1, "compares with 0.0.0.0, binds nothing"),
    ("B102", "engine/language/workers/confined.py"): (1, "runs the server's own text"),
    ("B307", "kernels/cpu/build.py"): (1, "evaluates text made of the program's own names"),
    ("B615", "engine/extras/bench/offline.py"): (2, "loads a local folder that the benchmark wrote"),
    ("B615", "engine/formats/checkpoint.py"): (2, "the user names the model, and --revision pins it"),
    ("B615", "server/commands/model_store/pull.py"): (3, "fetches the newest version of a model that the user names"),
}

# Lines that only look like secrets: a connection string in capitals, a prefix, a help text.
_NO_SECRETS = {
    ("docker/kubernetes/splitfuse.yaml", "USER:PASSWORD@HOST"),
    ("server/commands/setting_flags.py", '"api_key": "key that requests must bring"'),
    ("server/results/durable/settings.py", '"whsec_"'),
}


def main() -> int:
    """Run the three tools. Return 1 if one of them found anything new."""
    findings = [*_dangerous_calls(), *_secrets()]
    for finding in findings:
        print(finding)
    is_clean = _dependencies_are_clean()
    print(f"{len(findings)} new findings in the sources")
    return 1 if findings or not is_clean else 0


def _dangerous_calls() -> list[str]:
    command = [_BIN / "bandit", "-q", "-ll", "-r", *_PACKAGES, "-f", "json"]
    found = json.loads(subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout)["results"]
    groups = collections.defaultdict(list)
    for result in found:
        line = f"{result['filename']}:{result['line_number']}: {result['test_id']} {result['issue_text']}"
        groups[_key(result["test_id"], result["filename"])].append(line)
    return [line for key, lines in groups.items() if len(lines) > _READ.get(key, (0, ""))[0] for line in lines]


def _key(test: str, path: str) -> tuple[str, str]:
    return next((key for key in _READ if key[0] == test and path.startswith(key[1])), (test, path))


def _secrets() -> list[str]:
    """Tests and documents hold made-up keys, so only what is shipped is searched."""
    command = [_BIN / "detect-secrets", "scan", *_PACKAGES, "docker", ".github", ".ci"]
    found = json.loads(subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout)["results"]
    places = [(path, secret["line_number"]) for path, secrets in found.items() for secret in secrets]
    return [f"{path}:{number}: may be a secret" for path, number in places if not _is_no_secret(path, number)]


def _is_no_secret(path: str, number: int) -> bool:
    line = (_ROOT / path).read_text().splitlines()[number - 1]
    return any(path == name and text in line for name, text in _NO_SECRETS)


def _dependencies_are_clean() -> bool:
    command = [_BIN / "pip-audit", "-r", "constraints.txt", "--no-deps", "--progress-spinner", "off", "-f", "json"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(f"pip-audit could not look anything up: {done.stderr.strip().splitlines()[-1:]}")
        return True
    for package in packages:
        for fault in package.get("vulns", ()):
            print(f"{package['name']} {package['version']}: {fault['id']}, mended in {fault['fix_versions']}")
    unknown = sum("skip_reason" in package for package in packages)
    print(f"pip-audit knows {len(packages) - unknown} of {len(packages)} dependencies")
    return not any(package.get("vulns") for package in packages)


if __name__ == "__main__":
    sys.exit(main())
