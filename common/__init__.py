"""What the web side and the workers share: messages, names, settings, errors. No falcon and no torch here."""

__version__ = "0.1.0"

TGI_VERSION = "2.2.1-dev0"
"""The version of TGI's API spoken here; clients choose by it what they send."""
