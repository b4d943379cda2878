//! The closed forms of the plans that know which ranks share a host: two levels, and the chain.

use super::{Form, Terms, Traffic};
use crate::Collective;

impl Form<'_> {
    pub(super) fn hierarchical(&self) -> Terms {
        let (hosts, members) = (self.hosts, self.host_ranks_min);
        let crossing = if hosts > 1.0 { 1.0 } else { 0.0 };
        // One leg, folding or spreading: within the smallest host, and between its ranks and others.
        let host_blocks = self.ranks / members * self.block;
        let shared = if members > 1.0 { 1.0 } else { 0.0 };
        let leg = Terms {
            within: Traffic {
                rounds: shared * (self.ranks / members).ceil() * self.chunks,
                elems: (members - 1.0) * host_blocks,
            },
            between: Traffic { rounds: crossing, elems: members * (host_blocks - self.block) },
            folded: (members - 1.0) * host_blocks + (hosts - 1.0) * self.block,
            overlaps: true,
            ..Terms::default()
        };
        let spread = Terms { folded: 0.0, ..leg };
        // Chunks follow each other from the root, but the root waits for each before the next.
        let root = |rounds| self.rooted(rounds, self.others, 0.0);
        match self.shape.collective {
            Collective::AllReduce => leg.and(spread),
            Collective::ReduceScatter => leg,
            Collective::AllGather => spread,
            // The root takes the first chunk while it folds the second.
            Collective::Reduce { .. } => {
                let hidden_rounds = (self.chunks - 1.0).clamp(0.0, 1.0);
                Terms { hidden_rounds, ..leg.and(root(self.chunks)) }
            }
            _ => spread.and(root(1.0)),
        }
    }

    /// Where every link has one rank, items wait for one another between hosts.
    pub(super) fn chain(&self) -> Terms {
        let hosts = &self.shape.hosts;
        // The host of each link, and its ranks.
        let mut links: Vec<(u32, usize)> = Vec::new();
        for (host, run) in hosts.numbers().zip(hosts.runs()) {
            links.resize(run as usize + 1, (host, 0));
            links[run as usize].1 += 1;
        }
        let sizes = || links.iter().map(|&(_, ranks)| ranks);
        let fewest = sizes().min().expect("a world has a host");
        let most = sizes().max().expect("a world has a host") as f64;
        let batches: usize = sizes().map(|ranks| ranks.div_ceil(fewest)).sum();
        let items = batches as f64 * self.chunks;
        let hops = links.len() as f64 - 1.0;
        // How often a host sends everything on to a next link, and back to one before.
        let mut ways = vec![[0.0_f64; 2]; hosts.host_count()];
        for pair in links.windows(2) {
            ways[pair[0].0 as usize][0] += 1.0;
            ways[pair[1].0 as usize][1] += 1.0;
        }
        let up = ways.iter().flatten().copied().fold(0.0, f64::max);
        let both = ways.iter().map(|[on, back]| on + back).fold(0.0, f64::max);
        let blocks = self.ranks * self.block;
        let neighbours = (most - 1.0) / most * blocks;
        let (within, between) = if most > 1.0 { (items, hops) } else { (0.0, items + hops) };
        let way = |crossing, folded| Terms {
            within: Traffic { rounds: within, elems: neighbours },
            between: Traffic { rounds: between, elems: crossing },
            folded,
            overlaps: true,
            ..Terms::default()
        };
        let folded = if hops > 0.0 { blocks } else { neighbours };
        match self.shape.collective {
            Collective::AllReduce => way(both * blocks, folded).and(way(0.0, 0.0)),
            Collective::Reduce { .. } if hops > 0.0 => {
                let mut terms = way(up * blocks, folded);
                terms.between.rounds += 1.0;
                terms
            }
            Collective::Reduce { .. } => way(0.0, folded).and(way(0.0, 0.0)),
            // Ranks between two links take their results beside what is to be folded.
            _ if hops > 1.0 => way(up * blocks + self.host_ranks_max * self.block, folded),
            _ => way(up * blocks, folded),
        }
    }
}
