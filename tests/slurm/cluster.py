"""A real Slurm of one node on this machine, for tests: munge, slurmctld and slurmd with everything below one folder.

    cluster.py start DIR | stop DIR

Needs root, and the packages slurm-wlm and munge. After start: export SLURM_CONF=DIR/slurm.conf
"""

import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

PARTITION = "night"


def missing():
    """Why there can be no cluster here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    for program in ("slurmctld", "slurmd", "sbatch", "munged", "munge"):
        if not shutil.which(program):
            return f"{program} is not here: install slurm-wlm and munge"
    return None


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def configuration(folder, host):
    settings = {
        "ClusterName": "nocturne",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd.log",
        "SlurmctldPort": free_port(),
        "SlurmdPort": free_port(),
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "KillWait": 10,
        "MinJobAge": 600,
        "SchedulerParameters": "batch_sched_delay=1,sched_interval=2,bf_interval=2",
        "JobRequeue": 1,
        "FirstJobId": 1000 + int.from_bytes(os.urandom(2), "little"),  # names in shared places are made of it
    }
    cores = os.cpu_count()
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines.append(f"NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=2000 State=UNKNOWN")
    lines.append(f"PartitionName={PARTITION} Nodes={host} Default=YES MaxTime=120 State=UP OverSubscribe=YES")
    return "\n".join(lines) + "\n"


def start(folder):
    """Starts the daemons; returns when the node is idle. The environment's SLURM_CONF is set too."""
    folder = os.path.realpath(folder)
    for name in ("state", "spool", "munge"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    key = os.path.join(folder, "munge", "key")
    with open(key, "wb") as file:
        file.write(os.urandom(128))
    os.chmod(key, 0o600)
    os.chmod(os.path.join(folder, "munge"), 0o711)
    munge = os.path.join(folder, "munge")
    # --force: folders of root in which others may write are tolerated, such as /tmp
    subprocess.run(
        ["munged", "--force", f"--key-file={key}", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
         f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    path = os.path.join(folder, "slurm.conf")
    with open(path, "w", encoding="ascii") as file:
        file.write(configuration(folder, socket.gethostname().split(".")[0]))
    os.makedirs(os.path.join(folder, "pmix"), exist_ok=True)
    with open(os.path.join(folder, "mpi.conf"), "w", encoding="ascii") as file:
        file.write(f"PMIxCliTmpDirBase={folder}/pmix\n")
    os.environ["SLURM_CONF"] = path
    subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd"], check=True)
    for _ in range(120):
        answer = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    stop(folder)
    raise RuntimeError(f"Slurm's node does not become idle; see {folder}/slurmctld.log and {folder}/slurmd.log")


def forget_steps():
    """What a node forgets when it starts anew: the folders and sockets of the steps that ran on it."""
    folder = os.path.dirname(os.environ["SLURM_CONF"])
    for path in glob.glob(f"{glob.escape(folder)}/pmix/*") + glob.glob(f"{glob.escape(folder)}/spool/*pmix*"):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)


def stop(folder):
    for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                pid = int(file.read())
            os.kill(pid, signal.SIGTERM)
        except (OSError, ValueError):
            continue
        for _ in range(100):
            if not os.path.exists(f"/proc/{pid}"):
                break
            time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop"):
        sys.exit(__doc__)
    if sys.argv[1] == "start":
        REASON = missing()
        if REASON:
            sys.exit(f"cluster.py: {REASON}")
        start(sys.argv[2])
    else:
        stop(sys.argv[2])
