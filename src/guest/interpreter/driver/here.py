"""What this process is by now. One instance for all parts of the driver: a child gets its zygote's, and changes it."""


class Here:
    link = None  # to guestd; None in a zygote
    shell = None
    stamps = None
    charts_source = b""  # the text of charts.py


here = Here()
