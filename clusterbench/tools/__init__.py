"""What other programs print, as values: one file a program, each a pure function of text.

Nothing here starts a process. A parser reads by headers and names, never by position alone; what it cannot read whole
is a :class:`~clusterbench.errors.ToolError` that quotes the line, because a number that is silently wrong is worse than
none. Values are in the base units of the project: seconds, bytes, B/s.

``host_links`` and ``nccl_record`` are what ranks record of them.
"""
