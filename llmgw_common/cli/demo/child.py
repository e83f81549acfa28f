"""`python -m llmgw_common.cli.demo.child PARENT MODULE ARGS...`: become MODULE, tied to PARENT.

The kernel is asked to send SIGTERM when the parent dies, whatever ends it (Linux), and then this
process becomes `python -m MODULE ARGS`. So a killed demo takes its programs along: the agent ends
its engines at SIGTERM.

Source: prctl(2), PR_SET_PDEATHSIG; it survives execve(2), and a parent that died before the call
is told by the changed parent pid.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to its parent, then become the program."""
    parent, module, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit(1)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
