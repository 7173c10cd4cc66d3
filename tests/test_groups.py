"""Bytes by process group: a message in one group moves the counter of that group, and no other."""

import pytest

from dpviz.ranks.launch import launch
from dpviz.theory import traffic


def counted(config):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from dpviz.measure.groups import GroupMeter

    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("outer", "inner"))
    meter = GroupMeter({axis: mesh.get_group(axis) for axis in mesh.mesh_dim_names})
    readings = [meter.read()]
    dist.all_reduce(torch.ones(6000), group=mesh.get_group("inner"))
    readings.append(meter.read())
    dist.all_reduce(torch.ones(4000), group=mesh.get_group("outer"))
    dist.all_reduce(torch.ones(5000))  # of no group that is watched
    readings.append(meter.read())
    return [(sent, {axis: len(calls) for axis, calls in issued.items()}) for sent, issued in readings]


@pytest.mark.parametrize("wire", ["measured", "counted"])
def test_each_group_has_its_own_bytes(wire, monkeypatch):
    if wire == "counted":
        monkeypatch.setenv("DPVIZ_WIRE", "counted")
    inner, outer = (traffic.gloo_all_reduce(n, k, element_size=4)[0] for n, k in ((6000, 3), (4000, 2)))
    size = sum if wire == "measured" else lambda sent: sent.payload
    for nothing, first, second in launch(counted, world_size=6).results:
        assert nothing == ({"outer": 0, "inner": 0}, {"outer": 0, "inner": 0})
        assert first == ({"outer": 0, "inner": size(inner)}, {"outer": 0, "inner": 1})
        assert second == ({"outer": size(outer), "inner": 0}, {"outer": 1, "inner": 0})


def test_a_collective_of_some_ranks_is_counted_among_them(monkeypatch):
    """Also where its group has been destroyed, and where another launch's group had its name."""

    def in_pairs(config):
        import torch
        import torch.distributed as dist

        pairs = [dist.new_group(pair) for pair in ([0, 3], [1, 2])]
        mine = pairs[dist.get_rank() in (1, 2)]
        dist.all_reduce(torch.ones(6000), group=mine)
        dist.broadcast(torch.ones(500), min(dist.get_process_group_ranks(mine)), group=mine)
        dist.destroy_process_group(mine)

    def in_threes(config):
        import torch
        import torch.distributed as dist

        some = dist.new_group([0, 1, 3])
        if dist.get_rank() != 2:
            dist.all_reduce(torch.ones(6000), group=some)

    monkeypatch.setenv("DPVIZ_WIRE", "counted")
    pairs, threes = (launch(func, world_size=4).wire for func in (in_pairs, in_threes))
    broadcast = traffic.broadcast_bytes(4 * 500, 2)
    assert [wire.sent for wire in pairs] == [24_000 + broadcast[0]] * 2 + [24_000 + broadcast[1]] * 2
    assert [wire.sent for wire in threes] == [32_000, 32_000, 0, 32_000]
