"""What decides: which frame changes which state, what is answered, what must be durable before which answer leaves.

No sockets, clocks, threads or servers. An engine is fed raw frames and runs as a generator of effects (effects.py): what it
wants done or wants to know. Its driver does it and sends the result back in. Serving, standby, mirror and replay are drivers
of the same engines.
"""
