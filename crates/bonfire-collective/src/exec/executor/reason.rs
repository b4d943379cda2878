//! Why a data connection closed, which only the control channel can say.

use std::time::Duration;

use bonfire_plan::Rank;

use crate::health::poison::Poison;
use crate::health::wait::Interrupt;
use bonfire_connect::platform::{clock, thread};

/// How long to wait for the control channel to say why a data connection closed. What it says is on
/// its way already, but packets are lost, and the third time one is sent again is after a second and a
/// half. A rank that left because of another's failure must not be taken for the one that failed.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);
const REASON_LOOK: Duration = Duration::from_millis(5);

/// Why the data connection to a peer closed, if the control channel says so in time.
pub(super) fn await_reason(poison: &Poison, peer: Rank) -> Option<Interrupt> {
    let started = clock::now();
    while clock::since(started) < REASON_TIMEOUT {
        if let Some(failure) = poison.failure() {
            return Some(Interrupt::Failed(failure));
        }
        if poison.has_departed(peer) {
            return Some(Interrupt::Departed);
        }
        thread::sleep(REASON_LOOK);
    }
    None
}

#[cfg(test)]
mod tests {
    use bonfire_plan::WorldSize;

    use super::*;
    use crate::health::failure::Failure;

    /// A packet that is lost twice comes after a second and a half.
    const LATE: Duration = Duration::from_millis(1600);

    /// What is found of a closed connection to rank 1 if this happens a while later.
    fn reason(happens: impl FnOnce(&Poison) + Send) -> Option<Interrupt> {
        let poison = Poison::new(WorldSize::new(3).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LATE);
                happens(&poison);
            });
            await_reason(&poison, Rank::new(1))
        })
    }

    #[test]
    fn a_reason_that_comes_late_is_waited_for() {
        let failure = Failure::Peer { rank: Rank::new(2), cause: "it fell".to_owned() };
        let first = failure.clone();
        match reason(|poison| assert!(poison.set(first))) {
            Some(Interrupt::Failed(found)) => assert_eq!(found, failure),
            other => panic!("rank 1 would be blamed for rank 2: {other:?}"),
        }
        let departed = reason(|poison| poison.depart(Rank::new(1)));
        assert!(matches!(departed, Some(Interrupt::Departed)), "{departed:?}");
    }
}
