//! Which algorithm an operation uses when nobody forces one.
//!
//! Every choice here folds in the canonical order (ranks 0..n-1, element by element), so the choice
//! never changes the bits of a result: not between sizes, bucket layouts or transports. The ring is
//! taken only on request, because its bits depend on how the data is cut.

use bonfire_plan::{Algorithm, Collective};

/// Up to this many bytes everybody sends everything to everybody: one round instead of two. Where
/// the second round costs more than the extra bytes; measured with `bonfire bench` on two cores
/// over shared memory, 2026-11-20.
const ONE_SHOT_BYTES_MAX: usize = 16 << 10;

pub(crate) fn select(collective: Collective, bytes: usize, forced: Option<Algorithm>) -> Algorithm {
    if let Some(algorithm) = forced
        && Algorithm::candidates(collective).contains(&algorithm)
        // Needs buffers in memory that peers can reach.
        && algorithm != Algorithm::ZeroCopy
    {
        return algorithm;
    }
    match collective {
        Collective::AllReduce | Collective::Reduce { .. } if bytes > ONE_SHOT_BYTES_MAX => {
            Algorithm::TwoShot
        }
        Collective::AllReduce
        | Collective::Reduce { .. }
        | Collective::ReduceScatter
        | Collective::AllGather
        | Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::Transfer { .. }
        | Collective::Exchange { .. } => Algorithm::OneShot,
        Collective::Broadcast { .. } => Algorithm::Binomial,
        Collective::AllToAll => Algorithm::Pairwise,
        Collective::Barrier => Algorithm::Dissemination,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_algorithm_is_used_where_it_exists() {
        let forced = Some(Algorithm::Ring);
        assert_eq!(select(Collective::AllReduce, 4, forced), Algorithm::Ring);
        assert_eq!(
            select(Collective::Barrier, 0, forced),
            Algorithm::Dissemination
        );
        let direct = Some(Algorithm::ZeroCopy);
        assert_eq!(select(Collective::AllReduce, 4, direct), Algorithm::OneShot);
    }

    #[test]
    fn small_messages_take_one_round() {
        assert_eq!(select(Collective::AllReduce, 4, None), Algorithm::OneShot);
        assert_eq!(
            select(Collective::AllReduce, 1 << 20, None),
            Algorithm::TwoShot
        );
    }
}
