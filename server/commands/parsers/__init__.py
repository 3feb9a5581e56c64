"""Parsers of the command line: flags, help, and errors that name the right thing to type."""
