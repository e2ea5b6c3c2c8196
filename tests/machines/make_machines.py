#!/usr/bin/env python3
"""Writes the XML files of this folder: machines with accelerators, as hwloc 2 would record them.

hwloc's synthetic descriptions know no devices, so these are built here: make_machines.py [FOLDER]
"""
import os
import sys


def bits(first, count):
    """A set of processors in hwloc's notation: 32-bit words, most significant first."""
    value = ((1 << count) - 1) << first
    words = []
    while value or not words:
        words.append("0x%08x" % (value & 0xFFFFFFFF))
        value >>= 32
    return ",".join(reversed(words))


class Machine:
    def __init__(self, packages, numa_per_package, cores_per_numa, threads, memory_gib):
        self.packages, self.numa_per_package = packages, numa_per_package
        self.cores_per_numa, self.threads, self.memory_gib = cores_per_numa, threads, memory_gib
        self.lines, self.index = [], 0

    def sets(self, numa_first, numa_count):
        width = self.cores_per_numa * self.threads
        cpus, nodes = bits(numa_first * width, numa_count * width), bits(numa_first, numa_count)
        return f'cpuset="{cpus}" complete_cpuset="{cpus}" nodeset="{nodes}" complete_nodeset="{nodes}"'

    def add(self, depth, text):
        self.lines.append("  " * depth + text)

    def name(self):
        self.index += 1
        return f'gp_index="{self.index}"'

    def numa_node(self, depth, number, devices):
        self.add(depth, f'<object type="NUMANode" os_index="{number}" {self.sets(number, 1)} {self.name()} '
                        f'local_memory="{self.memory_gib << 30}"/>')
        for core in range(number * self.cores_per_numa, (number + 1) * self.cores_per_numa):
            nodes = bits(number, 1)
            cpus = bits(core * self.threads, self.threads)
            self.add(depth, f'<object type="Core" os_index="{core}" cpuset="{cpus}" complete_cpuset="{cpus}" '
                            f'nodeset="{nodes}" complete_nodeset="{nodes}" {self.name()}>')
            for cpu in range(core * self.threads, (core + 1) * self.threads):
                one = bits(cpu, 1)
                self.add(depth + 1, f'<object type="PU" os_index="{cpu}" cpuset="{one}" complete_cpuset="{one}" '
                                    f'nodeset="{nodes}" complete_nodeset="{nodes}" {self.name()}/>')
            self.add(depth, "</object>")
        for device in devices:
            device(self, depth)

    def write(self, path, devices_of):
        total = self.packages * self.numa_per_package
        self.add(1, f'<object type="Machine" os_index="0" {self.sets(0, total)} '
                    f'allowed_cpuset="{bits(0, total * self.cores_per_numa * self.threads)}" '
                    f'allowed_nodeset="{bits(0, total)}" {self.name()}>')
        for package in range(self.packages):
            first = package * self.numa_per_package
            self.add(2, f'<object type="Package" os_index="{package}" {self.sets(first, self.numa_per_package)} {self.name()}>')
            for number in range(first, first + self.numa_per_package):
                if self.numa_per_package == 1:
                    self.numa_node(3, number, devices_of(number))
                    continue
                self.add(3, f'<object type="Group" {self.sets(number, 1)} {self.name()} kind="0" subkind="0">')
                self.numa_node(4, number, devices_of(number))
                self.add(3, "</object>")
            self.add(2, "</object>")
        self.add(1, "</object>")
        with open(path, "w", encoding="ascii") as out:
            out.write('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n')
            out.write('<topology version="2.0">\n' + "\n".join(self.lines) + "\n</topology>\n")


def on_the_bus(number):
    """An accelerator that CUDA and NVML both name, behind a host bridge."""
    def device(machine, depth):
        bus = f"0000:{0x10 + 0x10 * number:02x}:00.0"
        machine.add(depth, f'<object type="Bridge" {machine.name()} bridge_type="0-1" depth="0" bridge_pci="0000:[{bus[5:7]}-{bus[5:7]}]">')
        machine.add(depth + 1, f'<object type="PCIDev" {machine.name()} pci_busid="{bus}" '
                               'pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.015385">')
        machine.add(depth + 2, f'<object type="OSDev" {machine.name()} name="nvml{number}" subtype="NVML" osdev_type="1"/>')
        machine.add(depth + 2, f'<object type="OSDev" {machine.name()} name="cuda{number}" subtype="CUDA" osdev_type="5"/>')
        machine.add(depth + 1, "</object>")
        machine.add(depth, "</object>")
    return device


def on_the_board(number):
    """An accelerator that only OpenCL names, with no bus in sight."""
    def device(machine, depth):
        machine.add(depth, f'<object type="OSDev" {machine.name()} name="opencl0d{number}" subtype="OpenCL" osdev_type="5"/>')
    return device


def behind_switches(number):
    """Two accelerators of a NUMA node, each behind a switch of its own; the second shares its switch with a network adapter."""
    def device(machine, depth):
        first = 0x40 * number + 0x10

        def bridge(depth, secondary, own):
            at = f'bridge_pci="0000:[{secondary[0]:02x}-{secondary[1]:02x}]"'
            if own is None:
                machine.add(depth, f'<object type="Bridge" {machine.name()} bridge_type="0-1" depth="0" {at}>')
                return
            machine.add(depth, f'<object type="Bridge" {machine.name()} bridge_type="1-1" depth="1" {at} pci_busid="{own}" '
                               'pci_type="0604 [1000:c030] [1000:0100] b0" pci_link_speed="63.015385">')

        def accelerator(depth, bus, index):
            machine.add(depth, f'<object type="PCIDev" {machine.name()} pci_busid="0000:{bus:02x}:00.0" '
                               'pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="63.015385">')
            machine.add(depth + 1, f'<object type="OSDev" {machine.name()} name="cuda{index}" subtype="CUDA" osdev_type="5"/>')
            machine.add(depth, "</object>")

        bridge(depth, (first, first + 0x3), None)
        bridge(depth + 1, (first + 1, first + 1), f"0000:{first:02x}:01.0")
        accelerator(depth + 2, first + 1, 2 * number)
        machine.add(depth + 1, "</object>")
        bridge(depth + 1, (first + 2, first + 3), f"0000:{first:02x}:02.0")
        accelerator(depth + 2, first + 2, 2 * number + 1)
        machine.add(depth + 2, f'<object type="PCIDev" {machine.name()} pci_busid="0000:{first + 3:02x}:00.0" '
                               'pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="63.015385">')
        machine.add(depth + 3, f'<object type="OSDev" {machine.name()} name="ib{number}" osdev_type="2"/>')
        machine.add(depth + 3, f'<object type="OSDev" {machine.name()} name="mlx5_{number}" osdev_type="3"/>')
        machine.add(depth + 2, "</object>")
        machine.add(depth + 1, "</object>")
        machine.add(depth, "</object>")
    return device


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    Machine(2, 1, 48, 2, 1024).write(os.path.join(folder, "two-sockets-8-cuda.xml"),
                                     lambda node: [on_the_bus(node * 4 + i) for i in range(4)])
    Machine(2, 1, 8, 1, 256).write(os.path.join(folder, "two-sockets-4-cuda-2-adapters.xml"),
                                   lambda node: [behind_switches(node)])
    Machine(2, 4, 16, 1, 128).write(os.path.join(folder, "eight-numa-8-opencl.xml"), lambda node: [on_the_board(node)])


main()
