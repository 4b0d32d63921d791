"""Records what Intel's extension for PyTorch 2.8 computes on CPUs, for `ipex_pack` to pack.

It needs an environment of its own with torch 2.8.0 and intel-extension-for-pytorch 2.8.0, some
7 GB as torch brings CUDA. The extension is archived and gets no fixes, and this torch has known
security issues: make it in a container without secrets, run this, keep the files, and throw the
environment away.

    make oracle-ipex                                   does all of it, in build/oracles/ipex
    python -m tests.oracles.ipex_vectors out/ipex      writes out/ipex/*.npz and index.json alone;
                                                       names of cases after it: of those alone
    make oracle-ipex FROM=out/ipex                     packs them for the tests

A module is prepared and calibrated; the scales of its recipe are edited to those of the plan; it is
prepared again, converted, traced and frozen, and its third run is recorded. index.json holds every
scale and zero point, and how far recovered integers were from whole numbers at most.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import tempfile
import warnings
import zlib

import intel_extension_for_pytorch as ipex
import numpy as np
import torch
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver, QConfig, QConfigMapping

from tests.oracles.ipex_cases import CASES, PLANS, SETTINGS, Ctx, T

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join("out", "ipex")


def qconfig(setting):
    dt, qs = SETTINGS[setting]
    return QConfigMapping().set_global(
        QConfig(
            activation=MinMaxObserver.with_args(dtype=dt, qscheme=qs),
            weight=PerChannelMinMaxObserver.with_args(
                dtype=torch.qint8, qscheme=torch.per_channel_symmetric
            ),
        )
    )


def ops_of(rec):
    """flat list of (fqn or type, op record); nested modules keep their own running index"""
    return [(m, i, o) for m, v in rec.items() for i, o in v["q_op_infos"].items()]


def graph_summary(t, *xs):
    """The frozen graph as text: a line for the top graph, one for each fusion group."""
    g = str(t.graph_for(*xs))
    out = []
    for part in re.split(r"\nwith ", g):
        head = re.match(r"(ipex::\w+|prim::\w+)", part)
        body = re.findall(r"= ((?:aten|ipex|quantized|prim|torch_ipex)::\w+)", part)
        body = [b for b in body if b not in ("prim::Constant", "prim::ListConstruct")]
        out.append((head.group(1) if head else "top") + ": " + " ".join(body))
    return out


def run_static(name, setting, plan, seed):
    c = Ctx(setting, plan, seed)
    m, xs, roles, probe = CASES[name](c)
    m = m.eval()
    xt = tuple(T(x) for x in xs)
    tmp = tempfile.mktemp()
    with torch.no_grad():
        p = ipex.quantization.prepare(m, qconfig(setting), example_inputs=xt, inplace=False)
        p(*xt)
        p.save_qconf_summary(qconf_summary=tmp)
        rec = json.load(open(tmp))
        if plan != "minmax":
            new = {}
            for _, _, o in ops_of(rec):
                for (who, k), role in roles.items():
                    if who == o["fqn"] or (not o["fqn"] and who in o["op_type"]):
                        if k == "out":
                            new.setdefault(o["output_tensor_infos"][0]["id"], role)
                        elif k < len(o["input_tensor_infos"]) and o["input_tensor_infos"][k]:
                            new.setdefault(o["input_tensor_infos"][k]["id"], role)
                if o["fqn"] in c.w and o["weight_tensor_infos"]:
                    o["weight_tensor_infos"][0]["scale"] = [float(v) for v in c.w[o["fqn"]]]
            for _, _, o in ops_of(rec):
                for t in o["input_tensor_infos"] + o["output_tensor_infos"]:
                    if t and t.get("id") in new and "scale" in t:
                        s, z = c.roles[new[t["id"]]]
                        t["scale"], t["zero_point"] = [float(s)], [z]
            json.dump(rec, open(tmp, "w"))
        p = ipex.quantization.prepare(m, qconfig(setting), example_inputs=xt, inplace=False)
        p.load_qconf_summary(qconf_summary=tmp)
        cv = ipex.quantization.convert(p)
        ye = cv(*xt)
        t = torch.jit.freeze(torch.jit.trace(cv, xt))
        t(*xt)
        t(*xt)
        yt = t(*xt)
        yf = m(*xt)
        graph = graph_summary(t, *xt)
    os.remove(tmp)
    a = {f"x{i}": x for i, x in enumerate(xs)}
    yt, ye = yt.numpy(), ye.numpy()
    a.update(y_traced=yt, y_eager=ye)
    for k, v in m.state_dict().items():
        if k != "probe.weight":
            a["p." + k] = v.numpy()
    meta, tensors = [], {}
    for _, _, o in ops_of(rec):
        e = {
            "op": re.sub(
                r"<(?:class|built-in method|method|function) ?'?|'? of.*|'?>| at 0x.*",
                "",
                o["op_type"],
            ),
            "fqn": o["fqn"],
            "inputs": [],
            "outputs": [],
            "weights": [],
        }
        for kind in ("input", "output"):
            for t in o[f"{kind}_tensor_infos"]:
                if not t:
                    e[kind + "s"].append(None)
                    continue
                if t.get("scale"):
                    tensors[str(t["id"])] = [t["scale"][0], t["zero_point"][0]]
                e[kind + "s"].append(
                    {
                        "id": t["id"],
                        "dtype": str(t.get("inf_dtype")).replace("torch.", ""),
                        "force": str(t.get("force_dtype", "")).replace("torch.", ""),
                    }
                )
        e["weights"] = [w["scale"] for w in o["weight_tensor_infos"]]  # zero points are all 0
        meta.append(e)
    r = {
        "file": f"{name}.{setting}.{plan}.npz",
        "case": name,
        "setting": setting,
        "plan": plan,
        "seed": seed,
        "ops": meta,
        "tensors": tensors,
        "graph": graph,
        "probe": probe,
        "rel_err_vs_float": float(
            np.linalg.norm(yt - yf.numpy()) / (np.linalg.norm(yf.numpy()) + 1e-30)
        ),
        "eager_equal": bool(np.array_equal(yt, ye)),
    }
    if r["eager_equal"]:
        del a["y_eager"]
    if probe:
        pr = next(e for e in meta if e["fqn"] == probe)
        i = pr["inputs"][0]["id"]
        s, z = tensors[str(i)]
        ws = np.array(pr["weights"][0])
        w = np.minimum(np.rint(1 / ws), 127) * ws
        w = w.reshape((1, -1, 1, 1)) if yt.ndim == 4 else w
        qt, qe = (y.astype(np.float64) / (s * w) for y in (yt, ye))
        a["codes"] = (np.rint(qt) + z).astype(np.int16)
        r["decode_residual"] = float(np.abs(qt - np.rint(qt)).max())
        r["eager_codes_different"] = int((np.rint(qt) != np.rint(qe)).sum())
        r["decoded_tensor"] = i
    np.savez_compressed(os.path.join(OUT, r["file"]), **a)
    return r


def main():
    os.makedirs(OUT, exist_ok=True)
    only = sys.argv[2:]
    done, failed = [], []
    for n in CASES:
        if only and n not in only:
            continue
        for si, s in enumerate(SETTINGS):
            for pi, p in enumerate(PLANS[1:] if n.endswith("_wide") else PLANS):
                try:
                    done.append(
                        run_static(n, s, p, 1000 * si + 10 * pi + zlib.crc32(n.encode()) % 99991)
                    )
                except Exception as e:
                    failed.append(
                        {
                            "case": n,
                            "setting": s,
                            "plan": p,
                            "error": re.sub(r"/\S+", "<path>", repr(e))[:300],
                        }
                    )
                    print("FAIL", n, s, p, repr(e)[:160], flush=True)
        print(n, len(done), flush=True)
    flags = []
    try:
        flags = sorted(
            f
            for f in re.search(r"flags\s*:\s*(.*)", open("/proc/cpuinfo").read()).group(1).split()
            if re.match(r"avx|amx|fma|f16c|sse4", f)
        )
    except OSError:
        pass
    json.dump(
        {
            "torch": torch.__version__,
            "ipex": ipex.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "onednn_of_torch": re.findall(r"(?:oneDNN|MKL-DNN) v[\d.]+", torch.__config__.show())[
                :1
            ],
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "quantized_engine": torch.backends.quantized.engine,
            "cpu_flags": flags,
            "threads": torch.get_num_threads(),
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "(unset)"),
            "cases": done,
            "failed": failed,
        },
        open(os.path.join(OUT, "index.json"), "w"),
        separators=(",", ":"),
    )


if __name__ == "__main__":
    main()
