"""The command line: commands of one kind share a file."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily
from randquant.cli.main import main

if TYPE_CHECKING:
    from randquant.cli.main import parse
    from randquant.cli.options import (
        EVERYTHING,
        NamedMechanism,
        Option,
        all_commands,
        flag,
        function_options,
        given_channel,
    )

__all__ = [
    "main",
]

lazily(__name__)
