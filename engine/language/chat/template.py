"""Chat template of a model: a conversation becomes the text of a prompt, by the rules of transformers.

Sandboxed and immutable, with trimmed blocks, loop controls and generation marks, `tojson`, `raise_exception` and
`strftime_now`. What a template does not take is brought into a form that it takes (shapes.py). Knows no tokens.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ...errors import ConfigError, InvalidRequestError
from .messages import check_roles
from .shapes import Shapes, without_nulls

# Names that a request's chat_template_kwargs may not set: the conversation itself and options of rendering.
RESERVED_NAMES = frozenset(
    {
        *("messages", "tools", "documents", "conversation", "chat_template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "bos_token", "eos_token", "pad_token", "unk_token"),
    }
)
_MAX_REASON_CHARS = 300
_READS_THINKING = re.compile(r"\bmessage\.thinking\b")  # gpt-oss's name of reasoning_content
_END_MARK = "SPLITFUSE_THE_FINAL_MESSAGE_ENDS_HERE "


class ChatTemplate:
    """Compiled template. `tool_source` is a model's second template, for conversations with tools.

    `ChatTemplate(**recipe)` builds an equal template. `render` may take forever; renderer.py limits it.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        self.recipe = {"source": source, "special_tokens": dict(special_tokens), "tool_source": tool_source}
        self.source = source if tool_source is None else f"{source}\n{tool_source}"
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        self._template = _compiled(environment, source)
        self._tool_template = self._template if tool_source is None else _compiled(environment, tool_source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        describes_tools: bool = False,
        repairs: bool = True,
        **options: Any,
    ) -> str:
        """Return the prompt's text. `describes_tools`: tools and calls become text of the messages, as they do for a
        template that shows none. Without `repairs` the text is transformers', whatever the template leaves out.
        `options`: add_generation_prompt (True); continue_final_message: the text ends within the last message, which
        the model goes on with; variables. Raises InvalidRequestError, with the template's own message if the template
        refuses the conversation.
        """
        if not repairs:
            return self._render(without_nulls(messages), tools=tools or None, **options)
        check_roles(messages, template=self.source)
        shapes = self.shapes
        if describes_tools:
            shapes = replace(shapes, shows_tools=False, shows_calls=False)
        example = self._example if tools and shapes.shows_calls and not shapes.shows_tools else None
        turns, shown_tools = shapes.fit(messages, tools, example=example)
        try:
            return self._render(turns, tools=shown_tools, **options)
        except InvalidRequestError:
            if not tools or not shapes.shows_tools:
                raise
            in_words = replace(shapes, shows_tools=False)  # schemas that a template cannot show
            with suppress(InvalidRequestError):
                turns, shown_tools = in_words.fit(messages, tools, example=self._example)
                return self._render(turns, tools=shown_tools, **options)
            raise

    @cached_property
    def _example(self) -> str | None:
        """A call in the template's own words, None if the template shows none."""
        from .form_trials import CallTrials  # here: few templates show calls and no tools

        if not self.shapes.shows_calls:
            return None
        try:
            trials = CallTrials(self.render, is_parallel=False, thoughts=None)
            text = trials.answer_text([("NAME", {"KEY": "VALUE"})], tools=[])
            return text.partition(self._special_tokens.get("eos_token") or "\0")[0]
        except InvalidRequestError:
            return None

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes that the template takes."""
        return Shapes.found(lambda messages, tools: self._render(messages, tools=tools))

    def _render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if _READS_THINKING.search(self.source):
            messages = [_with_thinking(message) for message in messages]
        try:
            return self._render_shown([_shown(message) for message in messages], **options)
        except InvalidRequestError:
            conversation = [_shown(message, has_objects=True) for message in messages]
            if conversation == [_shown(message) for message in messages]:
                raise
            return self._render_shown(conversation, **options)  # for templates that list the arguments

    def _render_shown(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        if continue_final_message:
            _mark_end(conversation[-1])
        template = self._tool_template if tools else self._template
        try:
            text = template.render(
                messages=conversation,
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **(variables or {})},
            )
        except InvalidRequestError:
            raise
        except Exception as exc:  # a template is the model's own program; any error it raises is about this input
            raise InvalidRequestError(
                f"the chat template cannot render these messages ({type(exc).__name__}: {_short(str(exc))})",
                param="messages",
            ) from exc
        return _cut_at_mark(text) if continue_final_message else text


def read_template(setting: str) -> str:
    """Return the source for --chat-template: a file, or the template itself if it holds a tag. Raises ConfigError."""
    if "{{" in setting or "{%" in setting:
        return setting
    try:
        return Path(setting).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--chat-template {setting!r} is neither a template nor a file that can be read") from exc


class _Arguments(dict[str, Any]):
    """Arguments of a call, which become JSON if a template adds them to a text (DeepSeek's template does)."""

    def __radd__(self, text: str) -> str:
        return text + _tojson(self)


def _with_thinking(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with its reasoning under gpt-oss's name, or without it if it has calls and a content.

    That template refuses both together: the content before calls stands where their reasoning would.
    """
    renamed = {"thinking" if key == "reasoning_content" else key: value for key, value in message.items()}
    if renamed.get("tool_calls") and renamed.get("content"):
        renamed.pop("thinking", None)
    return renamed


def _shown(message: Mapping[str, Any], *, has_objects: bool = False) -> dict[str, Any]:
    """Return the message in the form that templates read: with _Arguments in its calls.

    `has_objects`: so are arguments that are text, because an answer ended within a call.
    """
    shown = dict(message)
    if "tool_calls" in shown:
        shown["tool_calls"] = [{**call, "function": dict(call["function"])} for call in shown["tool_calls"]]
    for function in (call["function"] for call in shown.get("tool_calls", ())):
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            function["arguments"] = _Arguments(arguments)
        elif isinstance(arguments, str) and has_objects:
            function["arguments"] = _Arguments(arguments=arguments)
    return shown


def _mark_end(message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _END_MARK
    elif not isinstance(content, list):
        reason = "continue_final_message: the last message has no text to go on with"
        raise InvalidRequestError(reason, param="continue_final_message")
    else:
        message["content"] = [{**content[-1], "text": content[-1]["text"] + _END_MARK}]


def _cut_at_mark(text: str) -> str:
    """Return the text up to the end mark; a template that trims messages has trimmed the mark as well."""
    end = text.rfind(_END_MARK.strip())
    if end < 0:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not show the last message as it is",
            param="continue_final_message",
        )
    before = text[:end]
    return before if text.startswith(_END_MARK, end) else before.rstrip()


def _compiled(environment: Environment, source: str) -> Template:
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as exc:
        raise ConfigError(f"the chat template does not compile (line {exc.lineno}: {exc})") from exc
    except (RecursionError, MemoryError, SyntaxError) as exc:
        raise ConfigError("the chat template does not compile: it nests too deeply") from exc


def _environment() -> Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMark, loopcontrols], optimized=False
    )
    environment.code_generator_class = _CodeGenerator
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_refuse,
        strftime_now=lambda pattern: datetime.now().strftime(pattern),
        dict=_Dict(),
        namespace=_Namespace,
    )
    return environment


def _refuse(message: object) -> None:
    raise InvalidRequestError(f"the chat template refuses this conversation: {_short(str(message))}", param="messages")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + "…"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump JSON without escaping HTML, unlike Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox in which a template may fill and empty its own lists: Kimi K2's queue of ids would be an error."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """True if a template may read this attribute."""
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


class _CodeGenerator(CodeGenerator):
    """Code generator without constant folding: `{{ "x" * 10 ** 10 }}` must take its memory at render time, limited."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Frame) -> None:
        if not all(isinstance(option.value, nodes.Const) for option in node.options):
            self.fail("autoescape is true or false", node.lineno)
        super().visit_EvalContextModifier(node, frame)


class _GenerationMark(Extension):
    """Tag `{% generation %}…{% endgeneration %}`, which marks text for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block as a call that returns its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str] | Macro) -> str:
        return str(caller())


class _Dict:
    """Replacement of `dict`: the attributes of the real type lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """Namespace that refuses names beginning with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`: a template may have a variable of that name
        self, *rest = args
        names = dict(*rest, **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore: {name!r}")
