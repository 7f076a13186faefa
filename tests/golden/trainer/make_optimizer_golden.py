#!/usr/bin/env python3
"""Steps of other programs' optimizers, for tests/server/trainer/optimizer_test.cc (torch 2.11.0, bitsandbytes 0.50.0,
torchao 0.18.0; CPU, f32).

usage: make_optimizer_golden.py > optimizer.txt
The parameters start as cos(i), gradients are sin(i + step); lr 1e-2. A line is: name, step, then values.
  signed_map, unsigned_map   the 256 values of bitsandbytes' dynamic maps; step 0
  sgd                        torch.optim.SGD with momentum 0.9, 5 elements
  lion                       bitsandbytes.optim.Lion with betas (0.9, 0.99), weight decay 0.1, 5 elements
  adamw_8bit                 torchao.optim.AdamW8bit with betas (0.9, 0.95), eps 1e-8, weight decay 0.1: elements 0,
                             100, 200, ... of 4096
"""
import math
import warnings

import torch

torch._dynamo.config.disable = True  # torchao compiles its step otherwise
warnings.filterwarnings("ignore")

import bitsandbytes  # noqa: E402
import bitsandbytes.functional  # noqa: E402
from torchao.optim import AdamW8bit  # noqa: E402

STEPS = 10


def show(name, step, values):
    print(name, step, *(f"{value:.9g}" for value in values))


def run(name, make, size, every):
    parameter = torch.nn.Parameter(torch.tensor([math.cos(i) for i in range(size)], dtype=torch.float32))
    optimizer = make([parameter])
    for step in range(1, STEPS + 1):
        parameter.grad = torch.tensor([math.sin(i + step) for i in range(size)], dtype=torch.float32)
        optimizer.step()
        if step in (1, 2, STEPS):
            show(name, step, parameter.tolist()[::every])


show("signed_map", 0, bitsandbytes.functional.create_dynamic_map(signed=True).tolist())
show("unsigned_map", 0, bitsandbytes.functional.create_dynamic_map(signed=False).tolist())
run("sgd", lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), 5, 1)
run("lion", lambda p: bitsandbytes.optim.Lion(p, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1), 5, 1)
run("adamw_8bit", lambda p: AdamW8bit(p, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), 4096, 100)
