"""Starts things: the virtual environment, the embedded PostgreSQL, the worker processes.

Nothing here decides anything about a tool call, and nothing that is started may outlive the process that started it.
"""
