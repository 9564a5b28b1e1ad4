_ROWS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max processes             4127762              4127762              processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""


def plant(machine):
    machine.files["/proc/self/limits"] = _ROWS
