"""The vocabulary: messages, subjects, envelopes and ids. Imports pydantic and the stdlib only."""
