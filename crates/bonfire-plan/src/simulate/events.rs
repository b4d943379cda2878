//! The events to come, earliest first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of a time that do not count. Sums of the same costs in another order differ in the last bits
/// of the fraction; they are the same time, and what then happens must not hang on the difference.
const ROUNDING_BITS: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    /// Its first byte reaches the port out of the sender.
    Out,
    /// Its first byte reaches the port into the receiver.
    In,
    /// Its last byte has passed the network card out of the sender's host.
    Left,
    /// Its last byte has passed the network card into the receiver's host.
    Entered,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    pub(super) time_s: f64,
    /// Who is first among those that arrive at the same time.
    pub(super) turn: u32,
    pub(super) transit: u32,
    pub(super) hop: Hop,
}

/// Arrivals by time, then by turn, then in the order in which the transits began.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
}

/// An arrival whose order is that of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The bits of the time, without the last. Those of numbers that are not negative sort like the
    /// numbers themselves.
    rounded: u64,
    /// Packs turn, transit and hop.
    place: u64,
    /// All bits of the time.
    time_bits: u64,
}

const HOP_BITS: u32 = 2;
const TRANSIT_BITS: u32 = 30;

impl Events {
    pub(super) fn push(&mut self, arrival: Arrival) {
        debug_assert!(arrival.time_s >= 0.0 && arrival.transit < 1 << TRANSIT_BITS);
        let time_bits = arrival.time_s.to_bits();
        let half = 1 << (ROUNDING_BITS - 1);
        self.heap.push(Reverse(Entry {
            rounded: (time_bits + half) >> ROUNDING_BITS,
            place: u64::from(arrival.turn) << (TRANSIT_BITS + HOP_BITS)
                | u64::from(arrival.transit) << HOP_BITS
                | arrival.hop as u64,
            time_bits,
        }));
    }

    pub(super) fn pop(&mut self) -> Option<Arrival> {
        let Reverse(entry) = self.heap.pop()?;
        Some(Arrival {
            time_s: f64::from_bits(entry.time_bits),
            turn: (entry.place >> (TRANSIT_BITS + HOP_BITS)) as u32,
            transit: (entry.place >> HOP_BITS) as u32 & ((1 << TRANSIT_BITS) - 1),
            hop: match entry.place & 3 {
                0 => Hop::Out,
                1 => Hop::In,
                2 => Hop::Left,
                _ => Hop::Entered,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(time_s: f64, turn: u32, transit: u32) -> Arrival {
        let hop = [Hop::Out, Hop::In, Hop::Left, Hop::Entered][transit as usize % 4];
        Arrival { time_s, turn, transit, hop }
    }

    #[test]
    fn arrivals_come_by_time_and_turn_and_then_in_the_order_of_their_start() {
        let sorted = [
            arrival(0.0, 0, 1),
            arrival(0.0, 0, 3),
            arrival(0.0, 1, 0),
            arrival(1e-9, 0, 2),
            // The same number, but for its last bits.
            arrival(0.1 + 0.2, 0, 4),
            arrival(0.3, 0, 5),
            arrival(2.0, 0, 7),
            arrival(1e300, u32::MAX, (1 << TRANSIT_BITS) - 1),
        ];
        let mut events = Events::default();
        for index in [4, 1, 7, 0, 3, 6, 2, 5] {
            events.push(sorted[index]);
        }
        let seen: Vec<Arrival> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(seen, sorted);
    }
}
