"""The budget of second tries."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw_server.gateway.retry import RETRIES_MIN, RETRIES_SHARE, WINDOW_S, RetryBudget


def test_a_few_retries_are_always_allowed_and_a_storm_is_not():
    budget = RetryBudget()
    for _ in range(RETRIES_MIN):
        budget.request(5.0)
        assert budget.allows(5.0)
        budget.retry(5.0)
    assert not budget.allows(5.0)


def test_a_fifth_of_many_requests_may_be_retried():
    budget = RetryBudget()
    for _ in range(1000):
        budget.request(5.0)
    for _ in range(200):
        assert budget.allows(5.0)
        budget.retry(5.0)
    assert not budget.allows(5.0)


def test_the_budget_comes_back_with_time():
    budget = RetryBudget()
    for _ in range(RETRIES_MIN):
        budget.retry(5.0)
    assert not budget.allows(5.0 + WINDOW_S - 0.1)
    assert budget.allows(5.0 + WINDOW_S)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50)), max_size=60))
def test_however_requests_fail_retries_stay_within_the_budget_of_the_window(steps):
    budget, now_s, requests, retries = RetryBudget(), 0.0, [], []
    for gap_s, count in steps:
        now_s += gap_s
        for _ in range(count):
            budget.request(now_s)
            requests.append(now_s)
            if budget.allows(now_s):
                budget.retry(now_s)
                retries.append(now_s)
    # A second is counted as a whole: the window is at most one second longer than it says.
    for end_s in retries:
        inside = [at_s for at_s in retries if end_s - WINDOW_S + 1 < at_s <= end_s]
        asked = [at_s for at_s in requests if end_s - WINDOW_S - 1 < at_s <= end_s]
        assert len(inside) <= max(RETRIES_MIN, len(asked) * RETRIES_SHARE + 1)
