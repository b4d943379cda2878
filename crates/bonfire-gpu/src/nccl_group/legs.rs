//! The messages of which an operation is made that combines nothing.

use bonfire_plan::{Collective, ElemRange, Rank, WorldSize, shard_range};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) way: Way,
    pub(crate) peer: Rank,
    /// Of the operation's elements: of the input where it is sent, of the output where it is received.
    pub(crate) range: ElemRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Recv,
    /// It is this rank's own, from its input to its output, which are two buffers.
    Own,
}

/// The legs of a rank for that many elements. Each that is sent has its counterpart at its peer,
/// and the messages of a pair come in the same order at both.
///
/// # Panics
/// For operations of another kind.
pub(crate) fn legs(
    collective: Collective,
    me: Rank,
    world_size: WorldSize,
    count: usize,
) -> Vec<Leg> {
    let all = ElemRange::up_to(count);
    let shard = |rank| shard_range(count, world_size, rank);
    let others = world_size.ranks().filter(|peer| *peer != me);
    let leg = |way, peer, range| Leg { way, peer, range };
    let to_each = |way| others.clone().map(move |peer| leg(way, peer, shard(peer)));
    let legs: Vec<Leg> = match collective {
        Collective::Gather { root } if me == root => to_each(Way::Recv).collect(),
        Collective::Gather { root } => vec![leg(Way::Send, root, shard(me))],
        Collective::Scatter { root } if me == root => to_each(Way::Send).collect(),
        Collective::Scatter { root } => vec![leg(Way::Recv, root, shard(me))],
        Collective::AllToAll => {
            let own = leg(Way::Own, me, shard(me));
            let sent = to_each(Way::Send).chain(to_each(Way::Recv));
            sent.chain([own]).collect()
        }
        Collective::Transfer { source, target } if me == source => {
            vec![leg(Way::Send, target, all)]
        }
        Collective::Transfer { source, .. } => vec![leg(Way::Recv, source, all)],
        Collective::Exchange { first, second } => {
            let halves = [ElemRange::up_to(count / 2), ElemRange::new(count / 2, count)];
            let (peer, [own, other]) =
                if me == first { (second, halves) } else { (first, [halves[1], halves[0]]) };
            vec![leg(Way::Send, peer, own), leg(Way::Recv, peer, other)]
        }
        other => unreachable!("{other} is not an exchange of messages"),
    };
    legs.into_iter().filter(|leg| !leg.range.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each rank's output holds after the messages, if rank r brings r * 1000 + index.
    fn after(collective: Collective, ranks: u32, count: usize) -> Vec<Vec<usize>> {
        let world_size = WorldSize::new(ranks).unwrap();
        let of = |me| legs(collective, me, world_size, count);
        let input = |rank: Rank| (0..count).map(move |index| 1000 * rank.index() + index);
        let mut outputs: Vec<Vec<usize>> = world_size.ranks().map(|r| input(r).collect()).collect();
        for me in world_size.ranks().filter(|me| takes_part(collective, *me)) {
            for leg in of(me).iter().filter(|leg| leg.way != Way::Send) {
                let source: Vec<usize> = input(leg.peer).collect();
                let sent = match leg.way {
                    Way::Own => leg.range,
                    _ => counterpart(&of(leg.peer), me),
                };
                assert_eq!(sent.len(), leg.range.len(), "{collective} of {count}");
                outputs[me.index()][leg.range.as_range()].copy_from_slice(&source[sent.as_range()]);
            }
            for leg in of(me).iter().filter(|leg| leg.way == Way::Send) {
                let theirs = of(leg.peer);
                let mut received = theirs.iter().filter(|l| l.way == Way::Recv && l.peer == me);
                assert!(received.next().is_some() && received.next().is_none());
            }
        }
        outputs
    }

    fn takes_part(collective: Collective, me: Rank) -> bool {
        match collective {
            Collective::Transfer { source, target } => me == source || me == target,
            Collective::Exchange { first, second } => me == first || me == second,
            _ => true,
        }
    }

    /// The one message of `legs` to `target`.
    fn counterpart(legs: &[Leg], target: Rank) -> ElemRange {
        let mut sent = legs.iter().filter(|leg| leg.way == Way::Send && leg.peer == target);
        let found = sent.next().expect("what is received is sent");
        assert!(sent.next().is_none(), "one message to a peer");
        found.range
    }

    #[test]
    fn shards_come_to_the_root_and_go_back() {
        for ranks in 1..=5 {
            let world_size = WorldSize::new(ranks).unwrap();
            for count in [0, 1, ranks as usize - 1, ranks as usize, 4 * ranks as usize + 3] {
                let root = Rank::new(ranks / 2);
                let gathered = after(Collective::Gather { root }, ranks, count);
                let scattered = after(Collective::Scatter { root }, ranks, count);
                for owner in world_size.ranks() {
                    for index in shard_range(count, world_size, owner).as_range() {
                        let own = 1000 * owner.index() + index;
                        assert_eq!(gathered[root.index()][index], own);
                        let of_root = 1000 * root.index() + index;
                        assert_eq!(scattered[owner.index()][index], of_root);
                    }
                }
                for other in world_size.ranks().filter(|rank| *rank != root) {
                    let own = (0..count).map(|index| 1000 * other.index() + index);
                    assert!(gathered[other.index()].iter().copied().eq(own));
                }
            }
        }
    }

    #[test]
    fn every_rank_has_a_block_for_every_rank() {
        for ranks in 1..=5 {
            let block = 3;
            let count = block * ranks as usize;
            let outputs = after(Collective::AllToAll, ranks, count);
            for (me, output) in outputs.iter().enumerate() {
                for (index, value) in output.iter().enumerate() {
                    let source = index / block;
                    assert_eq!(*value, 1000 * source + me * block + index % block);
                }
            }
        }
    }

    #[test]
    fn two_ranks_do_it_alone() {
        let (first, second) = (Rank::new(0), Rank::new(2));
        let (source, target) = (second, first);
        let sent = after(Collective::Transfer { source, target }, 3, 4);
        assert_eq!(sent[0], [2000, 2001, 2002, 2003]);
        assert_eq!((sent[1][0], sent[2][0]), (1000, 2000));
        let exchanged = after(Collective::Exchange { first, second }, 3, 4);
        for rank in [0, 2] {
            assert_eq!(exchanged[rank], [0, 1, 2002, 2003]);
        }
    }
}
