"""Collectives between ranks that are threads or processes of a host, as compiled code."""
