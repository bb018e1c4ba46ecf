"""What the web side and the workers share: messages, names, settings, errors. No falcon and no torch here."""

__version__ = "0.1.0"
