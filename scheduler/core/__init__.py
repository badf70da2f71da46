"""The pure scheduler: state, queue, snapshot, filters, placement. No I/O, no await, no clock of its own.

``Core.handle(event)`` updates the state, ``Core.cycle(now)`` decides one entity on one snapshot and returns the
instructions to carry out; their outcome comes back as events. The same events give the same decisions.
"""
