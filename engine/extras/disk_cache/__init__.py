"""Prefix cache on disk: blocks and recurrent states that outlive the process."""
