from clusterbench.facts.time_sync import CHRONYC, TIMEDATECTL


def plant(machine):
    machine.programs[TIMEDATECTL] = "NTP=yes\nNTPSynchronized=yes\n"
    machine.programs[CHRONYC] = (
        "0A4D0001,10.77.0.1,3,1750000000.123456789,0.000012345,-0.000003210,0.000022000,"
        "-11.500,0.001,0.020,0.000210000,0.000110000,64.2,Normal\n"
    )
    machine.files["/run/chrony/chronyd.sock"] = ""
    machine.files["/sys/devices/system/clocksource/clocksource0/current_clocksource"] = "tsc\n"
