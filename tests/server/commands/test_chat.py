"""Commands of a conversation, without a model; test_generate.py has the command itself."""

import json

import pytest

from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.server.commands.chat import Conversation


class Tokenizer:
    def render_chat(self, messages):
        return "|".join(f"{message['role']}:{message['content']}" for message in messages)

    def encode(self, text, *, add_special_tokens):
        return text


class Session:
    """Session that answers with the number of its answer."""

    def __init__(self):
        self.prompts = []
        self.answered = ""
        self.is_interrupted = False

    def answer(self, prompt, params):
        self.prompts.append(prompt)
        self.answered = f"answer {len(self.prompts)}"
        if self.is_interrupted:
            raise KeyboardInterrupt


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def talk(session):
    conversation = Conversation(session, Tokenizer(), SamplingParams())

    def talk(*lines):
        assert all(conversation.take(line) for line in lines)
        return session.prompts[-1] if session.prompts else None

    talk.conversation = conversation
    return talk


def test_what_was_said_is_in_the_next_prompt(talk, session):
    assert talk("hello", "  ", "again") == "user:hello|assistant:answer 1|user:again"
    session.is_interrupted = True
    talk("longer")
    session.is_interrupted = False
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


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/help", "/system TEXT"),
        ("/dance", "/dance is not a command; /help lists them"),
        ("/save", "/save needs a file"),
        ("/load /no/such", "/no/such cannot be read as a saved conversation"),
        ("/save /no/such/folder/file", "cannot be written"),
    ],
)
def test_a_command_that_is_told_something_is_no_message(line, text, talk, capsys):
    assert talk(line) is None
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("line", ["/bye", "/exit", " /quit "])
def test_the_end(line, talk):
    assert not talk.conversation.take(line)


def test_a_path_is_a_message(talk):
    assert talk("/usr/bin is what?") == "user:/usr/bin is what?"
