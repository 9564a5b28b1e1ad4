def plant(machine):
    machine.files |= {
        "/etc/systemd/logind.conf": "[Login]\n#NAutoVTs=6\n#RemoveIPC=yes\n",
        "/etc/systemd/logind.conf.d/50-training.conf": "[Login]\nRemoveIPC=no\n",
        "/run/systemd/system/any.scope": "",
    }
