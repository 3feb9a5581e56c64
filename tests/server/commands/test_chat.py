"""Commands of a conversation, without a model; test_generate.py has the command itself."""

import io
import json

import pytest
from tables import table

from splitfuse.server.commands.chat import ChatOptions, Conversation, _read_message
from splitfuse.server.commands.terminal.chat_model import Usage


class Model:
    """ChatModel that answers with the number of its answer."""

    name = "m"

    def __init__(self):
        self.prompts = []
        self.fields = []
        self.is_interrupted = False

    def answer(self, messages, fields, show):
        self.prompts.append("|".join(f"{message['role']}:{message['content']}" for message in messages))
        self.fields.append(dict(fields))
        show(f"answer {len(self.prompts)}")
        if self.is_interrupted:
            raise KeyboardInterrupt
        return Usage(num_prompt_tokens=20, num_cached_tokens=16, num_output_tokens=3)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def talk(model):
    conversation = Conversation(model, ChatOptions({"max_tokens": 9}))

    def talk(*lines):
        assert all(conversation.take(line) for line in lines)
        return model.prompts[-1] if model.prompts else None

    talk.conversation = conversation
    return talk


def test_what_was_said_is_in_the_next_prompt(talk, model):
    assert talk("hello", "  ", "again") == "user:hello|assistant:answer 1|user:again"
    model.is_interrupted = True
    talk("longer")
    model.is_interrupted = False
    assert talk("go on").endswith("user:longer|assistant:answer 3|user:go on")


def test_a_system_message_outlives_a_reset(talk):
    assert talk("hello", "/system You are a bear.", "hi") == "system:You are a bear.|user:hi"
    assert talk("/reset", "who?") == "system:You are a bear.|user:who?"
    assert talk("/system", "who?") == "user:who?"


def test_a_conversation_is_saved_and_loaded(talk, tmp_path):
    path = tmp_path / "talk.json"
    talk("/system Be kind.", "hello", f"/save {path}", "/system", "forgotten")
    assert [message["role"] for message in json.loads(path.read_text())] == ["system", "user", "assistant"]
    assert talk(f"/load {path}", "and?") == "system:Be kind.|user:hello|assistant:answer 1|user:and?"


@pytest.mark.parametrize(("line", "text"), table(__file__, "wrong lines"))
def test_a_command_that_is_told_something_is_no_message(line, text, talk, capsys):
    assert talk(line) is None
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("line", ["/bye", "/exit", " /quit "])
def test_the_end(line, talk):
    assert not talk.conversation.take(line)


def test_a_path_is_a_message(talk):
    assert talk("/usr/bin is what?") == "user:/usr/bin is what?"


def test_settings_are_changed_and_taken_back(talk, model, capsys):
    talk("/set temperature 0.2", '/set stop ["x"]', "hello", "/set temperature", "/set stop", "again")
    assert model.fields == [{"max_tokens": 9, "temperature": 0.2, "stop": ["x"]}, {"max_tokens": 9}]


def test_an_answer_is_retried_and_taken_back(talk, model):
    talk("one", "two", "/retry")
    assert model.prompts[-1] == model.prompts[-2] == "user:one|assistant:answer 1|user:two"
    assert talk("/undo", "three") == "user:one|assistant:answer 1|user:three"
    assert talk("/undo", "/undo", "four") == "user:four"


def test_the_conversation_is_shown(talk, capsys):
    talk("/system Be kind.", "hello", "/set seed 3", "/show")
    assert capsys.readouterr().err.splitlines() == [
        "m; settings: max_tokens 9, seed 3",
        "system: Be kind.",
        "user: hello",
        "assistant: answer 1",
    ]


def test_the_speed_is_shown_where_it_is_asked_for(model, capsys):
    Conversation(model, ChatOptions({}, system="Be brief.", is_verbose=True)).take("hello")
    assert model.prompts == ["system:Be brief.|user:hello"]
    text = capsys.readouterr().err
    assert text.startswith("3 tokens, ")
    assert text.endswith(" s to the first; 16 of 20 prompt tokens from the cache\n")


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ('"""one\n  two\nthree"""\nfour\n', ["one\n  two\nthree", "four"]),
        ('"""\none\n\n"""\n', ["one"]),
        ('"""one"""\n', ["one"]),
        ('"""one\n', []),
    ],
)
def test_quotes_hold_several_lines(typed, messages, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert list(iter(_read_message, None)) == messages
