//! Address spaces: which are used, and which one to give out next.
//!
//! Each pool is a binary trie over its addresses. A node knows how many reported spaces cover it
//! whole and how large the largest free aligned block below it is, so that marking a space and
//! finding the lowest free one cost one walk from root to leaf, however many spaces are in use.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses in a space when nobody says how many.
pub const DEFAULT_SIZE: i32 = 65534;

/// Why a space cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// The configuration repeats itself.
    #[error("the address pools {0} and {1} overlap")]
    PoolsOverlap(IpNet, IpNet),
    /// No pool at all.
    #[error("there is no address pool to take spaces from")]
    NoPool,
    /// A negative size.
    #[error("{0} is not a number of addresses")]
    Size(i32),
    /// Everything is used, or cut into smaller pieces.
    #[error("no free address space with {0} addresses is left in the pools")]
    Exhausted(i32),
}

/// All pools with what is used in them.
#[derive(Debug, Clone)]
pub struct AddressBook {
    pools: Vec<Pool>,
}

impl AddressBook {
    /// Empty pools, in address order.
    pub fn new(pools: &[IpNet]) -> Result<Self, SpaceError> {
        let mut nets: Vec<IpNet> = pools.iter().map(IpNet::trunc).collect();
        nets.sort_by_key(|net| (net.addr().is_ipv6(), net.network()));
        for pair in nets.windows(2) {
            if pair[0].contains(&pair[1]) || pair[1].contains(&pair[0]) {
                return Err(SpaceError::PoolsOverlap(pair[0], pair[1]));
            }
        }
        if nets.is_empty() {
            return Err(SpaceError::NoPool);
        }
        Ok(Self { pools: nets.into_iter().map(Pool::new).collect() })
    }

    /// Marks a space as used. The same space may be marked by several reports.
    pub fn mark(&mut self, net: IpNet) {
        for pool in &mut self.pools {
            pool.change(net, true);
        }
    }

    /// Takes one mark back.
    pub fn unmark(&mut self, net: IpNet) {
        for pool in &mut self.pools {
            pool.change(net, false);
        }
    }

    /// The lowest free space for each size (a number of addresses, 0 for the usual one), none of
    /// them overlapping another. Nothing is marked.
    pub fn find(&mut self, sizes: &[i32]) -> Result<Vec<IpNet>, SpaceError> {
        let mut found = Vec::with_capacity(sizes.len());
        let mut outcome = Ok(());
        for &size in sizes {
            match self.find_one(size) {
                Ok(net) => {
                    self.mark(net);
                    found.push(net);
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for &net in &found {
            self.unmark(net);
        }
        outcome.map(|()| found)
    }

    fn find_one(&self, size: i32) -> Result<IpNet, SpaceError> {
        let addresses = match size {
            0 => DEFAULT_SIZE,
            1.. => size,
            _ => return Err(SpaceError::Size(size)),
        };
        let height = addresses.cast_unsigned().next_power_of_two().trailing_zeros() as u8;
        self.pools.iter().find_map(|pool| pool.lowest(height)).ok_or(SpaceError::Exhausted(addresses))
    }

    /// Whether no part of the space is used and all of it lies in a pool.
    pub fn is_free(&self, net: IpNet) -> bool {
        self.pools.iter().any(|pool| pool.is_free(net))
    }
}

const NONE: u32 = 0;
const ROOT: u32 = 1;

#[derive(Debug, Clone, Copy, Default)]
struct Node {
    children: [u32; 2],
    /// Reported spaces that are exactly this block, or, at the root, all of it and more.
    covers: u32,
    /// One more than the height of the largest free block here; 0 if there is none.
    best: u8,
}

#[derive(Debug, Clone)]
struct Pool {
    net: IpNet,
    base: u128,
    height: u8,
    /// The first is not used, so that index 0 can mean "nothing below".
    nodes: Vec<Node>,
    spare: Vec<u32>,
}

/// A block inside a pool: its first address and the number of address bits it leaves open.
#[derive(Debug, Clone, Copy)]
struct Block {
    base: u128,
    height: u8,
}

impl Pool {
    fn new(net: IpNet) -> Self {
        let height = net.max_prefix_len() - net.prefix_len();
        let root = Node { best: height + 1, ..Node::default() };
        Self {
            net,
            base: number(net.network()),
            height,
            nodes: vec![Node::default(), root],
            spare: Vec::new(),
        }
    }

    /// The part of `net` that lies in this pool, if any.
    fn clip(&self, net: IpNet) -> Option<Block> {
        if net.addr().is_ipv4() != self.net.addr().is_ipv4() {
            None
        } else if self.net.contains(&net) {
            Some(Block { base: number(net.network()), height: net.max_prefix_len() - net.prefix_len() })
        } else if net.contains(&self.net) {
            Some(Block { base: self.base, height: self.height })
        } else {
            None
        }
    }

    fn change(&mut self, net: IpNet, add: bool) {
        if let Some(block) = self.clip(net) {
            self.walk(ROOT, self.height, block, add);
        }
    }

    fn walk(&mut self, at: u32, height: u8, block: Block, add: bool) {
        if height == block.height {
            let covers = &mut self.nodes[at as usize].covers;
            *covers = if add { *covers + 1 } else { covers.saturating_sub(1) };
        } else {
            let side = (block.base >> (height - 1) & 1) as usize;
            let mut child = self.nodes[at as usize].children[side];
            if child == NONE {
                if !add {
                    return;
                }
                child = self.create();
                self.nodes[at as usize].children[side] = child;
            }
            self.walk(child, height - 1, block, add);
            let Node { children, covers, .. } = self.nodes[child as usize];
            if covers == 0 && children == [NONE; 2] {
                self.nodes[at as usize].children[side] = NONE;
                self.spare.push(child);
            }
        }
        self.nodes[at as usize].best = self.judge(at, height);
    }

    fn create(&mut self) -> u32 {
        if let Some(index) = self.spare.pop() {
            self.nodes[index as usize] = Node::default();
            return index;
        }
        self.nodes.push(Node::default());
        (self.nodes.len() - 1) as u32
    }

    fn judge(&self, at: u32, height: u8) -> u8 {
        let Node { children, covers, .. } = self.nodes[at as usize];
        match (covers, children) {
            (1.., _) => 0,
            (0, [NONE, NONE]) => height + 1,
            (0, [low, high]) => self.best(low, height - 1).max(self.best(high, height - 1)),
        }
    }

    fn best(&self, at: u32, height: u8) -> u8 {
        if at == NONE { height + 1 } else { self.nodes[at as usize].best }
    }

    fn lowest(&self, wanted: u8) -> Option<IpNet> {
        if self.best(ROOT, self.height) <= wanted {
            return None;
        }
        let (mut at, mut height, mut base) = (ROOT, self.height, self.base);
        // Down to the block that is free as a whole: its lowest part is the answer.
        while self.best(at, height) != height + 1 {
            let [low, high] = self.nodes[at as usize].children;
            height -= 1;
            at = if self.best(low, height) > wanted {
                low
            } else {
                base |= 1 << height;
                high
            };
        }
        Some(self.net_at(base, wanted))
    }

    fn is_free(&self, net: IpNet) -> bool {
        if !self.net.contains(&net) {
            return false;
        }
        let (base, wanted) = (number(net.network()), net.max_prefix_len() - net.prefix_len());
        let (mut at, mut height) = (ROOT, self.height);
        loop {
            if at == NONE {
                return true;
            }
            let node = self.nodes[at as usize];
            if node.covers > 0 {
                return false;
            }
            if height == wanted {
                return node.best == height + 1;
            }
            height -= 1;
            at = node.children[(base >> height & 1) as usize];
        }
    }

    fn net_at(&self, base: u128, height: u8) -> IpNet {
        let address = match self.net {
            IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(base as u32)),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(base)),
        };
        // The height never exceeds the pool's, so the length is always legal.
        IpNet::new_assert(address, self.net.max_prefix_len() - height)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn gives_sixteens_from_the_bottom() {
        let mut book = AddressBook::new(&[net("10.0.0.0/8")]).unwrap();
        assert_eq!(book.find(&[0]).unwrap(), [net("10.0.0.0/16")]);
        book.mark(net("10.0.0.0/16"));
        book.mark(net("10.1.2.0/24"));
        assert_eq!(
            book.find(&[0, 256, 65534, 1]).unwrap(),
            [net("10.2.0.0/16"), net("10.1.0.0/24"), net("10.3.0.0/16"), net("10.1.1.0/32"),]
        );
        // Nothing was kept by asking.
        assert_eq!(book.find(&[0]).unwrap(), [net("10.2.0.0/16")]);
        book.unmark(net("10.0.0.0/16"));
        assert_eq!(book.find(&[0]).unwrap(), [net("10.0.0.0/16")]);
    }

    #[test]
    fn a_lone_block_fits_exactly() {
        let mut book = AddressBook::new(&[net("192.168.7.0/24")]).unwrap();
        assert_eq!(book.find(&[256]).unwrap(), [net("192.168.7.0/24")]);
        assert_eq!(book.find(&[257]), Err(SpaceError::Exhausted(257)));
        assert_eq!(book.find(&[-1]), Err(SpaceError::Size(-1)));
        book.mark(net("192.168.0.0/16"));
        assert_eq!(book.find(&[1]), Err(SpaceError::Exhausted(1)));
        assert!(!book.is_free(net("192.168.7.4/30")));
        book.unmark(net("192.168.0.0/16"));
        assert!(book.is_free(net("192.168.7.4/30")));
    }

    #[test]
    fn pools_are_checked_and_used_in_address_order() {
        assert_eq!(AddressBook::new(&[]).unwrap_err(), SpaceError::NoPool);
        assert!(AddressBook::new(&[net("10.0.0.0/8"), net("10.3.0.0/16")]).is_err());
        let mut book =
            AddressBook::new(&[net("fd00::/48"), net("172.16.0.0/30"), net("10.0.0.0/30")]).unwrap();
        assert_eq!(
            book.find(&[4, 4, 4]).unwrap(),
            [net("10.0.0.0/30"), net("172.16.0.0/30"), net("fd00::/126")]
        );
    }

    /// The same answers by looking at every address.
    struct Slow {
        uses: Vec<u32>,
    }

    impl Slow {
        fn change(&mut self, first: usize, len: usize, add: bool) {
            for uses in &mut self.uses[first..first + len] {
                *uses = if add { *uses + 1 } else { *uses - 1 };
            }
        }

        fn find(&self, len: usize) -> Option<usize> {
            (0..self.uses.len())
                .step_by(len)
                .find(|&at| self.uses[at..at + len].iter().all(|&uses| uses == 0))
        }
    }

    proptest! {
        #[test]
        fn agrees_with_looking_at_every_address(
            steps in prop::collection::vec((any::<bool>(), 0_u8..=8, any::<u8>(), 0_i32..=256), 1..60),
        ) {
            let mut book = AddressBook::new(&[net("10.9.8.0/24")]).unwrap();
            let mut slow = Slow { uses: vec![0; 256] };
            let mut marked: Vec<(IpNet, usize, usize)> = Vec::new();
            for (add, height, at, size) in steps {
                if add || marked.is_empty() {
                    let (first, len) = (usize::from(at) >> height << height, 1 << height);
                    let block = IpNet::new(Ipv4Addr::new(10, 9, 8, first as u8).into(), 32 - height).unwrap();
                    book.mark(block);
                    slow.change(first, len, true);
                    marked.push((block, first, len));
                } else {
                    let (block, first, len) = marked.swap_remove(usize::from(at) % marked.len());
                    book.unmark(block);
                    slow.change(first, len, false);
                }
                let wanted = size.max(1);
                let len = (wanted as usize).next_power_of_two();
                let expected = slow.find(len).map(|first| net(&format!("10.9.8.{first}/{}", 32 - len.trailing_zeros())));
                prop_assert_eq!(book.find(&[wanted]).ok().map(|nets| nets[0]), expected);
                let probe = IpNet::new(Ipv4Addr::new(10, 9, 8, at >> 2 << 2).into(), 30).unwrap();
                let first = usize::from(at >> 2 << 2);
                prop_assert_eq!(book.is_free(probe), slow.uses[first..first + 4].iter().all(|&uses| uses == 0));
            }
            for (block, ..) in marked {
                book.unmark(block);
            }
            prop_assert!(book.is_free(net("10.9.8.0/24")), "all marks are gone");
            prop_assert!(book.pools[0].nodes.len() <= 2 + book.pools[0].spare.len(), "no node is left behind");
        }
    }

    #[test]
    fn the_cost_does_not_grow_with_the_number_of_spaces() {
        let mut book = AddressBook::new(&[net("10.0.0.0/8")]).unwrap();
        for index in 0..100_000_u32 {
            let space = IpNet::new(Ipv4Addr::from(0x0a00_0000 + (index << 7)).into(), 25).unwrap();
            assert_eq!(book.find(&[128]).unwrap(), [space]);
            book.mark(space);
        }
    }
}
