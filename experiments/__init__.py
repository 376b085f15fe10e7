"""Entry points: each file defines its flags and makes one call into lm."""

import os
import sys

if sys.argv[0] == "-m" or os.path.basename(sys.argv[0]).startswith(
    "isoflop-"
):  # a command starts, and imports for a second
    _told = sys.excepthook

    def _quiet(kind, error, trace) -> None:
        """Ends a Ctrl-C of that second without a traceback; later ones are told by cli.run."""
        if not issubclass(kind, KeyboardInterrupt):
            _told(kind, error, trace)

    sys.excepthook = _quiet

    from lm import platform

    platform.restart_with_memory()
