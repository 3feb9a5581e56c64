"""`splitfuse inspect`: facts of files and of names on the hub, from headers alone."""

import json

import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from hub_stand_in import hub_of
from serving import run_at_hub

from splitfuse.server.cli import main


def inspected(capfd, name):
    code = main(["inspect", str(name), "--json"])
    return code, json.loads(capfd.readouterr().out)


def test_a_file(tmp_path, capfd):
    write_gguf(tmp_path / "m.gguf", "qwen3", kind=Type.Q8_0, split="qwen2")
    code, facts = inspected(capfd, tmp_path / "m.gguf")
    assert (code, facts["served"], facts["family"], facts["architecture"]) == (0, True, "Qwen3", "qwen3")
    assert (facts["word_split"], facts["vocabulary"], facts["template"]) == ("qwen2", 271, False)
    assert max(facts["types"], key=facts["types"].get) == "Q8_0"
    assert sum(facts["types"].values()) == pytest.approx(1, abs=1e-3)
    assert facts["tokens_per_s"] > 1000
    assert main(["inspect", str(tmp_path / "m.gguf")]) == 0
    assert "  word split     qwen2\n" in capfd.readouterr().out


def test_what_is_not_served_says_why(tmp_path, capfd):
    write_gguf(tmp_path / "m.gguf", "qwen3", split="no-such")
    code, facts = inspected(capfd, tmp_path / "m.gguf")
    assert (code, facts["served"]) == (1, False)
    assert "'no-such' is not known" in facts["why_not"]
    write_gguf(tmp_path / "n.gguf", "qwen3", named="rwkv7")
    assert "GGUF architecture 'rwkv7' is not known" in inspected(capfd, tmp_path / "n.gguf")[1]["why_not"]


def test_a_folder(capfd):
    code, facts = inspected(capfd, "demo")
    assert (code, facts["format"], facts["family"], facts["template"]) == (0, "safetensors", "Llama 1 to 3", True)


def test_the_hub_is_asked_for_headers_alone(tmp_path):
    write_gguf(tmp_path / "tiny-Q8_0.gguf", "qwen3", tensors_of_a_part=9)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with hub_of("t/q-GGUF", files) as url:
        done = run_at_hub(url, tmp_path / "home", "inspect", "t/q-GGUF:Q8_0", "--json")
        assert "cannot be inspected" in run_at_hub(url, tmp_path / "home", "inspect", "t/other:Q8_0").stderr
    facts = json.loads(done.stdout)
    assert (facts["served"], facts["format"]) == (True, f"GGUF, {len(files)} parts")
    assert not (tmp_path / "home/hub").exists()
