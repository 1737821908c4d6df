"""What tests of speed share is in ``speed_fakes``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
