"""A grammar compiled and waited for."""

from splitfuse.engine.grammar import CompiledGrammar
from splitfuse.engine.grammar_compiler import GrammarCompiler
from splitfuse.engine.structured_outputs import StructuredOutputs


def compiled(compiler: GrammarCompiler, **fields: object) -> CompiledGrammar:
    return compiler.compile(StructuredOutputs(**fields)).result()  # type: ignore[arg-type]
