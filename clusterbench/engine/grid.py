"""The ranks of one case as a parallel layout sees them: a mesh, and the groups along it.

The dense view is one DeviceMesh with axes pp, dp, cp, tp. Beside it stand groups that are no axis of their own:

- ``dp_cp``: ranks that hold the same weights and see other tokens, where both axes are in use.
- ``ep`` and ``edp``: the expert grid, a second view of the ranks of one pipeline stage. ``ep`` shares one set of
  experts, ``edp`` holds copies of the same experts.
- ``ends``: first and last pipeline stage of one pipeline; a tied embedding is on both.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from clusterbench.layout import AXES, REPLICA, SHARD, ParallelLayout


class Grid:
    """Groups of one case by name. Making one is a collective, as making groups is.

    Attributes
    ----------
    mesh
        Axes pp, dp, cp, tp, all four, also those of degree 1.
    """

    def __init__(self, layout: ParallelLayout, rank_order: str, device_type: str) -> None:
        self.layout, self.device_type = layout, device_type
        ranks = torch.tensor(layout.mesh_ranks(rank_order), dtype=torch.int)
        self.mesh = DeviceMesh(device_type, ranks, mesh_dim_names=AXES)
        self._groups: dict[str, dist.ProcessGroup] = {axis: self.mesh.get_group(axis) for axis in AXES}
        for view in layout.views:
            self._add(view, layout.groups(view, rank_order))
        self._data_groups = layout.groups(layout.data_axis, rank_order)
        self._shards: dict[int, DeviceMesh] = {}

    def group(self, axis: str) -> dist.ProcessGroup:
        return self._groups[axis]

    def rank(self, axis: str) -> int:
        """This rank's place along an axis."""
        return dist.get_rank(self._groups[axis])

    def line(self, axis: str) -> DeviceMesh:
        """A mesh of the one axis, for what wants a mesh and not a group."""
        if axis in AXES:
            return self.mesh[axis]
        return DeviceMesh.from_group(self._groups[axis], self.device_type, mesh_dim_names=(axis,))

    def shards(self, size: int) -> DeviceMesh:
        """The data axis cut into groups of ``size``: a mesh (replica, shard). A collective when first asked for."""
        if size not in self._shards:
            rows = [[row[i : i + size] for i in range(0, len(row), size)] for row in self._data_groups]
            inner = [group for row in rows for group in row]
            outer = [list(column) for row in rows for column in zip(*row, strict=True)]
            self._add(SHARD, inner)
            self._add(REPLICA, outer)
            mine = next(row for row in rows if any(dist.get_rank() in group for group in row))
            self._shards[size] = DeviceMesh.from_group(
                [self._groups[REPLICA], self._groups[SHARD]],
                self.device_type,
                mesh=torch.tensor(mine, dtype=torch.int),
                mesh_dim_names=(REPLICA, SHARD),
            )
        return self._shards[size]

    def names(self) -> dict[str, str]:
        """Name of the process group -> axis, for the traffic counter. A group of one rank sends nothing."""
        return {group.group_name: axis for axis, group in self._groups.items() if group.size() > 1}

    def _add(self, name: str, groups: list[list[int]]) -> None:
        """Makes all groups, and keeps the one this rank is in, if it is in one."""
        for ranks in groups:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                assert group is not None
                self._groups[name] = group
