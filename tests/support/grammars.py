"""Compilation of a grammar, awaited."""

from splitfuse.engine.language.structured_output.compiler import GrammarCompiler
from splitfuse.engine.language.structured_output.grammar import CompiledGrammar
from splitfuse.engine.language.structured_output.params import StructuredOutputs


def compiled(compiler: GrammarCompiler, **fields: object) -> CompiledGrammar:
    return compiler.compile(StructuredOutputs(**fields)).result()  # type: ignore[arg-type]
