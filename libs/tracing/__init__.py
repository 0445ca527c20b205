"""Traces: where the present work hangs (``context``), spans (``spans``), and their way to a
collector (``export``). Without a collector nothing of the OpenTelemetry SDK is imported."""
