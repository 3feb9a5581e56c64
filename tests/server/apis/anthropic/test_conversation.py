"""Anthropic's conversations become those of chat templates, or the field that cannot is named."""

import pytest
from tables import table

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.apis.anthropic.conversation import read_conversation, sorted_tools

CACHED = {"cache_control": {"type": "ephemeral"}}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def test_texts_and_system():
    user = [{"role": "user", "content": "Hi"}]
    assert read_conversation(user) == user
    assert read_conversation(user, system="Be kind.") == [{"role": "system", "content": "Be kind."}, *user]
    blocks = [text("x-anthropic-billing-header: cch=1a2b3;"), text("Be kind.", **CACHED), text("Be brief.")]
    assert read_conversation([{"role": "user", "content": [text("Hi", **CACHED)]}], system=blocks) == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        *user,
    ]
    for nothing in ("", [], None):
        assert read_conversation(user, system=nothing) == user


def test_a_turn_with_calls_and_their_results():
    turns = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two towns.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("Let me look."),
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"town": "Rome"}},
                {"type": "tool_use", "id": "b", "name": "weather", "input": {}, **CACHED},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "b", "is_error": True, "content": [text("no"), text("town")]},
                {"type": "tool_result", "tool_use_id": "c"},
                text("So?"),
                text("Tell me.", **CACHED),
            ],
        },
    ]
    call = {"type": "function", "id": "a", "function": {"name": "weather", "arguments": {"town": "Rome"}}}
    assert read_conversation(turns) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "Two towns.",
            "tool_calls": [call, {**call, "id": "b", "function": {"name": "weather", "arguments": {}}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "no\n\ntown"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": "So?\n\nTell me."},
    ]


def test_a_turn_that_is_a_call_has_an_empty_text_as_well():
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    (message,) = read_conversation([{"role": "assistant", "content": [block]}])
    assert (message["content"], len(message["tool_calls"])) == ("", 1)


def test_consecutive_turns_of_one_role_are_one():
    said = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d")]
    assert read_conversation([{"role": role, "content": content} for role, content in said]) == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c\n\nd"},
    ]


def test_a_later_system_message_is_the_users():
    turns = [{"role": "user", "content": "a"}, {"role": "system", "content": [text("b", **CACHED)]}]
    expected = [{"role": "system", "content": "c"}, {"role": "user", "content": "a\n\nb"}]
    assert read_conversation(turns, system="c") == expected
    first = [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]
    assert read_conversation(first, system="c")[0] == {"role": "system", "content": "c\n\nb"}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(("content", "param", "said"), table(__file__, "not said by a user"))
def test_what_a_user_cannot_say_is_named(content, param, said):
    with pytest.raises(InvalidRequestError) as info:
        read_conversation([{"role": "user", "content": "x"}, {"role": "user", "content": content}])
    assert info.value.param == f"messages[1].{param}"
    assert said in str(info.value)


@pytest.mark.parametrize(
    ("block", "param"),
    [
        ({"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}, "type"),
        ({"type": "tool_use", "id": "a", "name": "f", "input": "{}"}, "input"),
        ({"type": "tool_use", "id": "a", "input": {}}, "name"),
        ({"type": "tool_use", "name": "f", "input": {}}, "id"),
        ({"type": "thinking"}, "thinking"),
    ],
)
def test_what_an_assistant_cannot_have_said_is_named(block, param):
    with pytest.raises(InvalidRequestError) as info:
        read_conversation([{"role": "assistant", "content": [block]}])
    assert info.value.param == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    ("messages", "system", "param"),
    [
        ([], None, "messages"),
        ("Hi", None, "messages"),
        ([{"role": "user", "content": []}], None, "messages"),
        (["Hi"], None, "messages[0]"),
        ([{"role": "system", "content": "x"}], "y", "messages"),
        ([{"role": "tool", "content": "x"}], None, "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], None, "messages[0].role"),
        ([{"role": "user", "content": "x"}], 5, "system"),
        ([{"role": "user", "content": "x"}], [IMAGE], "system[0].type"),
    ],
)
def test_what_is_no_conversation_is_named(messages, system, param):
    with pytest.raises(InvalidRequestError) as info:
        read_conversation(messages, system=system)
    assert info.value.param == param


def test_tools():
    schema = {"type": "object", "properties": {"town": {"type": "string"}}}
    tools = [
        {"name": "weather", "description": "In a town", "input_schema": schema, **CACHED, "defer_loading": True},
        {"type": "custom", "name": "now", "input_schema": {"type": "object"}, "strict": True},
    ]
    assert sorted_tools(tools).read() == [
        {"type": "function", "function": {"name": "weather", "description": "In a town", "parameters": schema}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    ]
    assert sorted_tools(None).read() == sorted_tools([]).read() == []


@pytest.mark.parametrize(
    ("tool", "param", "said"),
    [
        ({"name": "f"}, "tools[0].input_schema", "must be a JSON schema"),
        ({"name": "f g", "input_schema": {}}, "tools[0].name", "letters, digits"),
        ({"input_schema": {}}, "tools[0].name", "letters, digits"),
        (5, "tools[0]", "must be an object"),
        ({"type": 5}, "tools[0]", "must be an object"),
    ],
)
def test_a_tool_that_cannot_be_is_named(tool, param, said):
    with pytest.raises(InvalidRequestError) as info:
        sorted_tools([tool]).read()
    assert info.value.param == param
    assert said in str(info.value)


def test_tools_that_the_client_runs_are_functions_and_those_of_servers_are_left_out():
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 800, "display_height_px": 600},
        {"type": "new_20990101", "name": "new", "input_schema": {"type": "object"}},
    ]
    functions = [tool["function"] for tool in sorted_tools(tools).read()]
    assert [f["name"] for f in functions] == ["bash", "str_replace_editor", "memory", "computer", "new"]
    assert functions[0]["parameters"]["properties"].keys() == {"command", "restart"}
    assert functions[3]["description"].endswith("800 x 600 pixels.")
    assert sorted_tools(tools).ignored == ["tools[].web_search_20250305"]


def test_documents_of_plain_text_are_read():
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "a"},
    }
    blocks = {"type": "document", "source": {"type": "content", "content": [text("b"), text("c")]}}
    found = {"type": "search_result", "source": "http://x", "title": "X", "content": [text("d")]}
    turns = [
        {"role": "user", "content": [document, blocks]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": [document, found]}]},
    ]
    user, _, tool = read_conversation(turns)
    assert user["content"] == "Notes\na\n\nb\n\nc"
    assert tool["content"] == "Notes\na\n\nX\nhttp://x\nd"
    with pytest.raises(InvalidRequestError, match="reads text only"):
        read_conversation([{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "x"}}]}])
