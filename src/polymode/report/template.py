"""Templates of pages, with what every page carries: style, script and the script's own policy."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

from polymode._version import __version__
from polymode.core.text import plain

HERE = Path(__file__).parent


def fill(template: str, /, **facts: Any) -> str:
    """Return the page that a template and the facts make; all text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters["soft"] = _soft
    script = (HERE / "page.js").read_text()
    return engine.get_template(template).render(
        css=(HERE / "page.css").read_text(),
        script=script,
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        **facts,
    )


def _soft(text: str) -> Any:
    """Return a name that may be broken where people would break it."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_/=])", r"\1<wbr>", str(escape(plain(text)))))
