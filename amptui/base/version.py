"""The version of amptui, which this file alone has."""

__version__ = "0.1.0"
