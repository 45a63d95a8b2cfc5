"""`python -m voicepipe`."""

import sys

from voicepipe.cli import main

sys.exit(main())
