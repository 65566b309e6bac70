"""The engines, which decide which frame changes which state, what is answered, and what must be durable before which answer.

No sockets, clocks, threads or servers. An engine is fed raw frames and runs as a generator of effects (effects.py): actions
and queries that it requests. Its driver performs them and sends the results back. Serving, standby, mirror and replay are drivers
of the same engines.
"""
