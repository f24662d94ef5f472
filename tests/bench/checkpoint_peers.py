"""checkpoint_peers.py FOLDER MIB warm|fresh: seconds of a durable save (fsync of every file) of 64 float32 tensors by other writers, as JSON."""

import json
import os
import struct
import sys
import time

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


def main():
    folder, mib, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    count = 64
    tensors = {f"t{i:02}": numpy.full((mib << 20) // count // 4, i, dtype=numpy.float32) for i in range(count)}
    if how == "warm":  # the page cache has had pages of this size before
        save_like_safetensors(f"{folder}/warm", tensors)
        os.unlink(f"{folder}/warm")
    seconds = {}
    for name, save in (("h5py", save_h5py), ("numpy.save", save_numpy), ("torch.save", save_torch), ("like safetensors", save_like_safetensors)):
        os.sync()
        if how == "fresh":
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3")
        begun = time.monotonic()
        save(f"{folder}/peer", tensors)
        seconds[name] = time.monotonic() - begun
        for entry in os.listdir(folder):
            if entry.startswith("peer"):
                os.unlink(f"{folder}/{entry}")
    print(json.dumps(seconds))


main()
