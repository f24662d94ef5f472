"""checkpoint_peers.py FOLDER MIB warm|fresh: a durable save (fsync of every file) of 64 float32 tensors by other writers: {name: {seconds, cpu_s}} as JSON."""

import copy
import dataclasses
import json
import os
import resource
import shutil
import struct
import sys
import time
import warnings

import h5py
import numpy
import torch


def fsync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save_h5py(path, tensors):
    with h5py.File(path, "w") as file:
        for name, values in tensors.items():
            file.create_dataset(name, data=values)
    fsync(path)


def save_numpy(path, tensors):
    for name, values in tensors.items():
        numpy.save(f"{path}-{name}.npy", values)
        fsync(f"{path}-{name}.npy")


def save_torch(path, tensors):
    torch.save({name: torch.from_numpy(values) for name, values in tensors.items()}, path)
    fsync(path)


def save_like_safetensors(path, tensors):
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.data)
        file.flush()
        os.fsync(file.fileno())


def import_dcp():
    """Distributed checkpoints: a public module since 2.0; in 1.13 a private one, whose defaults Python 3.11 refuses as they are written."""
    try:
        import torch.distributed.checkpoint as dcp
        return lambda path, tensors: dcp.save(tensors, storage_writer=dcp.FileSystemWriter(path))
    except ImportError:
        pass
    made = dataclasses.dataclass

    def with_copied_defaults(cls=None, **options):
        if cls is None:
            return lambda cls: with_copied_defaults(cls, **options)
        for name in cls.__dict__.get("__annotations__", {}):
            value = cls.__dict__.get(name)
            value = value.default if isinstance(value, dataclasses.Field) else value
            if type(value).__hash__ is None:
                setattr(cls, name, dataclasses.field(default_factory=lambda value=value: copy.copy(value)))
        return made(cls, **options)

    dataclasses.dataclass = with_copied_defaults
    try:
        import torch.distributed._shard.checkpoint as dcp
    finally:
        dataclasses.dataclass = made
    return lambda path, tensors: dcp.save_state_dict(tensors, dcp.FileSystemWriter(path), no_dist=True)


def save_dcp(path, tensors):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DCP(path, {name: torch.from_numpy(values) for name, values in tensors.items()})  # it brings its files to disk itself


def cpu_seconds():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


WRITERS = {"h5py": save_h5py, "numpy.save": save_numpy, "torch.save": save_torch, "DCP": save_dcp, "like safetensors": save_like_safetensors}
DCP = import_dcp()


def main():
    folder, mib, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    count = 64
    tensors = {f"t{i:02}": numpy.full((mib << 20) // count // 4, i, dtype=numpy.float32) for i in range(count)}
    if how == "warm":  # the page cache has had pages of this size before
        save_like_safetensors(f"{folder}/warm", tensors)
        os.unlink(f"{folder}/warm")
    seen = {}
    for name, save in WRITERS.items():
        os.sync()
        if how == "fresh":
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3")
        begun, cpu = time.monotonic(), cpu_seconds()
        save(f"{folder}/peer", tensors)
        seen[name] = {"seconds": time.monotonic() - begun, "cpu_s": cpu_seconds() - cpu}
        for entry in os.listdir(folder):
            if entry.startswith("peer"):
                remove(f"{folder}/{entry}")
    print(json.dumps(seen))


main()
