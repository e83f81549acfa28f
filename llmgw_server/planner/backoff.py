"""How long to wait before a model that failed is started again."""

import hashlib

from llmgw_server.fleet.model import Failures
from llmgw_server.planner.policy import Policy


def backoff_s(failures: Failures, key: str, policy: Policy) -> float:
    """Seconds to wait after the last of `failures` before the next start of `key`.

    min(2**n * 5 s, 300 s) plus 0 to 20 % from a hash of (key, n): the same input waits the same
    time. The first failure of a replica that had been serving is not waited for: an engine that
    dies once comes back at once, and only one that keeps dying is held back.

    Source: design, replicas, pass step 7, and the recovery times; the 20 % is ours.
    """
    n = failures.in_a_row
    if n == 1 and failures.had_served:
        return 0.0
    wait_s = min(policy.backoff_first_s * 2.0 ** min(n, 16), policy.backoff_max_s)
    digest = hashlib.sha256(f"{key}/{n}".encode()).digest()
    return wait_s * (1.0 + 0.2 * digest[0] / 255)
