//! Nodes: which axes stay inside a machine and which cross the network.

use crate::{NodeError, ProcessTopology, Rank, RankList};

/// Divides the ranks of a world among machines, `ranks_per_node` consecutive ranks each; the last one
/// may hold fewer.
///
/// # Examples
///
/// ```
/// use brigade_topology::{Nodes, ProcessTopology};
///
/// let topology = ProcessTopology::pipe_data_model(4, 2, 4)?;
/// let nodes = Nodes::new(8)?;
/// assert!(nodes.crossing_axes(&topology).eq(["pipe"]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nodes {
    ranks_per_node: u64,
}

/// Proposes an order of axes; see [`Nodes::suggest_order`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisOrder {
    /// The topology with its axes in the proposed order.
    pub topology: ProcessTopology,
    /// The axes that cross nodes in this order, slowest first.
    pub crossing: Vec<String>,
    /// The traffic of the crossing axes together.
    ///
    /// # Units
    ///
    /// Those of the given traffic: bytes that one rank sends in one step, say.
    pub crossing_bytes: u128,
}

impl Nodes {
    /// Describes machines of `ranks_per_node` ranks each.
    ///
    /// # Errors
    ///
    /// [`NodeError::NoRanks`] for 0.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(brigade_topology::Nodes::new(8).is_ok());
    /// assert!(brigade_topology::Nodes::new(0).is_err());
    /// ```
    pub fn new(ranks_per_node: u64) -> Result<Self, NodeError> {
        if ranks_per_node == 0 { Err(NodeError::NoRanks) } else { Ok(Self { ranks_per_node }) }
    }

    /// Returns the machine of a rank.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Nodes, Rank};
    ///
    /// assert_eq!(Nodes::new(8)?.node_of(Rank(17)), 2);
    /// # Ok::<(), brigade_topology::NodeError>(())
    /// ```
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> u64 {
        rank.0 / self.ranks_per_node
    }

    /// Returns on how many machines the ranks of a group stand.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Nodes, ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(4, 4)?;
    /// let pipe = topology.axis_comm_list_of("pipe", Rank(0))?;
    /// assert_eq!(Nodes::new(8)?.n_nodes_of(&pipe), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn n_nodes_of(&self, group: &RankList) -> u64 {
        let (start, step, len) = group.parts();
        if len == 0 || step >= self.ranks_per_node {
            return len;
        }
        // Steps shorter than a machine leave none out.
        self.node_of(Rank(start + (len - 1) * step)) - self.node_of(Rank(start)) + 1
    }

    /// Tells whether some group of an axis stands on more than one machine. A missing axis crosses none.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Nodes, ProcessTopology};
    ///
    /// let topology = ProcessTopology::pipe_data(4, 4)?;
    /// assert!(Nodes::new(8)?.crosses(&topology, "pipe"));
    /// assert!(!Nodes::new(8)?.crosses(&topology, "data"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn crosses(&self, topology: &ProcessTopology, axis: &str) -> bool {
        // A group lies in a block of `size * stride` consecutive ranks. When the size of a machine is a
        // multiple of it, no block is cut. Otherwise the first machine that ends inside a block cuts it
        // at some offset, and one of the groups of that block, which start next to each other, has ranks
        // on both sides.
        topology.axis(axis).is_some_and(|axis| {
            axis.size > 1
                && self.ranks_per_node < topology.world_size()
                && !self.ranks_per_node.is_multiple_of(axis.size * axis.stride)
        })
    }

    /// Returns the axes that cross machines, slowest first.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Nodes, ProcessTopology};
    ///
    /// let topology = ProcessTopology::pipe_data_model(2, 8, 4)?;
    /// assert!(Nodes::new(8)?.crossing_axes(&topology).eq(["pipe", "data"]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn crossing_axes<'a>(
        &self,
        topology: &'a ProcessTopology,
    ) -> impl Iterator<Item = &'a str> + use<'a> {
        let nodes = *self;
        topology.axis_names().filter(move |axis| nodes.crosses(topology, axis))
    }

    /// Proposes the order of axes that keeps the most traffic inside machines.
    ///
    /// `traffic` names axes with what one rank sends along each in a step; an axis that is not named has
    /// none. The proposal minimises the traffic of all axes that [cross](Self::crosses) machines. Axes
    /// inside a machine come last, as the fastest. Within each part the axis with more traffic is the
    /// faster one, and axes with equal traffic keep their order.
    ///
    /// The best set of inner axes is found exactly: an axis stays inside when its size times the sizes of
    /// all faster axes divides the size of a machine, so the search runs over the divisors of that size.
    ///
    /// # Errors
    ///
    /// [`NodeError::Lookup`] for an axis that does not exist or is named twice.
    ///
    /// # Source
    ///
    /// Own. The usual advice (slices inside a machine, pipelines across) is its answer for the usual
    /// traffic.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Nodes, ProcessTopology};
    ///
    /// let topology = ProcessTopology::new(&[("model", 8), ("data", 4), ("pipe", 4)])?;
    /// let traffic = [("model", 900), ("data", 200), ("pipe", 10)];
    /// let order = Nodes::new(8)?.suggest_order(&topology, &traffic)?;
    /// assert!(order.topology.axis_names().eq(["pipe", "data", "model"]));
    /// assert_eq!(order.crossing, ["pipe", "data"]);
    /// assert_eq!(order.crossing_bytes, 210);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn suggest_order(
        &self,
        topology: &ProcessTopology,
        traffic: &[(&str, u64)],
    ) -> Result<AxisOrder, NodeError> {
        for (position, &(name, _)) in traffic.iter().enumerate() {
            topology.require_axis(name)?;
            if traffic.iter().take(position).any(|&(earlier, _)| earlier == name) {
                return Err(crate::LookupError::RepeatedAxis { name: name.to_owned() }.into());
            }
        }
        let bytes =
            |name: &str| traffic.iter().find(|(given, _)| *given == name).map_or(0, |&(_, bytes)| bytes);
        let axes: Vec<(&str, u64, u64)> =
            topology.axes().map(|(name, size)| (name, size, bytes(name))).collect();
        let inside = self.inner_axes(&axes, topology.world_size());
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|&axis| (inside[axis], axes[axis].2));
        let reordered: Vec<(&str, u64)> = order.iter().map(|&axis| (axes[axis].0, axes[axis].1)).collect();
        let topology = ProcessTopology::new(&reordered)?;
        let crossing: Vec<String> = self.crossing_axes(&topology).map(str::to_owned).collect();
        let crossing_bytes = crossing.iter().map(|name| u128::from(bytes(name))).sum();
        Ok(AxisOrder { topology, crossing, crossing_bytes })
    }

    /// Returns for each axis (name, size, traffic) whether it belongs to the best inner set.
    fn inner_axes(&self, axes: &[(&str, u64, u64)], world_size: u64) -> Vec<bool> {
        if world_size <= self.ranks_per_node {
            return vec![true; axes.len()];
        }
        // For each product of inner sizes that divides a machine: the most traffic, and the set, of which
        // the first found is kept. There are no more products than divisors.
        let mut best: std::collections::BTreeMap<u64, (u128, Vec<bool>)> = std::collections::BTreeMap::new();
        best.insert(1, (0, vec![false; axes.len()]));
        for (axis, &(_, size, bytes)) in axes.iter().enumerate() {
            for (product, (kept, set)) in best.clone() {
                let Some(larger) = product.checked_mul(size) else { continue };
                if !self.ranks_per_node.is_multiple_of(larger) {
                    continue;
                }
                let kept = kept + u128::from(bytes);
                if best.get(&larger).is_none_or(|(known, _)| kept > *known) || size == 1 {
                    let mut set = set;
                    set[axis] = true;
                    best.insert(larger, (kept, set));
                }
            }
        }
        let most = best.into_values().reduce(|one, other| if other.0 > one.0 { other } else { one });
        most.map_or_else(|| vec![false; axes.len()], |(_, set)| set)
    }
}
