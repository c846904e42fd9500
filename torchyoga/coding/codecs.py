"""How images, sound and text are kept in a column, and decoded when read: `yoga.codecs.jpeg(90)`."""

from __future__ import annotations

from .decoders import audio, text
from .encoders import flac, jpeg, png, zstd
from .images import image

__all__ = ["audio", "flac", "image", "jpeg", "png", "text", "zstd"]
