"""Shared by the scripts of this folder: runs a program, and ends when something is not as expected."""
import subprocess
import sys


def run(*arguments):
    return subprocess.run([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)


def expect(true, what):
    if not true:
        sys.exit(f"not as expected: {what}")
