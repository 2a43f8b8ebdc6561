"""The state of this process, shared by all parts of the driver. A fork starts with the zygote's."""


class Here:
    link = None  # to guestd; None in the zygote
    shell = None
    stamps = None  # None: not from the zygote, so never stale
    charts_source = b""  # the text of charts.py


here = Here()
