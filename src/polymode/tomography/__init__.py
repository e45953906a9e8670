"""Linear inverse problems: what was measured of an image, the image again, and how sure of it."""

from __future__ import annotations

from polymode.tomography.image_operators import blur, inpainting
from polymode.tomography.operator import LinearOperator

__all__ = ["LinearOperator", "blur", "inpainting"]
