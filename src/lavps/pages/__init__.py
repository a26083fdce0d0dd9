"""HTML pages of one file each: every image is embedded and nothing is fetched.

The templates are the ``*.html.jinja`` files of this package; values are escaped automatically.
"""

from __future__ import annotations

__all__ = ["data_uri", "render"]

import base64

from ..extras import require


def data_uri(content: bytes, media_type: str) -> str:
    """Return a file's content as a URL that can be embedded in a page."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def render(template: str, extra: str, **values: object) -> str:
    """Render a page.

    Args:
        template: Name of the template, without its suffixes.
        extra: Optional dependency that includes Jinja2, for the error message.
        **values: Variables of the template.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    jinja = require("jinja2", extra)
    environment = jinja.Environment(
        loader=jinja.PackageLoader("lavps", "pages"),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return str(environment.get_template(f"{template}.html.jinja").render(values))
