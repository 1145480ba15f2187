"""Shared tools without domain terms: argument checks, rounding, files and pages."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant._internal.declared import Count, Server
    from randquant._internal.files import write_atomic
    from randquant._internal.formatting import from_json, round_down, round_up, to_json
    from randquant._internal.imports import Face
    from randquant._internal.progress import WaitingBar, report, reporting, waiting
    from randquant._internal.validate import matches, name_patterns

lazily(__name__)
