"""The gateway is tested on the loop that it runs on, and on asyncio's own."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
