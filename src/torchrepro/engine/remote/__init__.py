"""Run candidates on other machines, through anything with the interface of `concurrent.futures.Executor`.

    search process ── RemoteExecutor ──► Relay ── submit ──► run_candidate ──► Host ──► forked child

The search process (`remote_executor.py`) sends candidates as data through a pipe to the process that started
it. There a relay (`relay.py`) submits them to the executor: one of the standard library, or a cluster
(`ray_cluster.py`). On the worker (`worker.py`) each is isolated as it is at home: in a child of a warm
process (`host.py`), confined if the bundle is a stranger's.
"""
