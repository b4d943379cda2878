//! One direction of a host's network card, which connections share as TCP and RDMA do: equally.
//!
//! The frames of one link pass in their order. Links that have any get the same bandwidth at every moment, which is
//! generalized processor sharing (Parekh and Gallager, "A generalized processor sharing approach to flow control in
//! integrated services networks", 1993). So what a card has done for each of them is one number, the bytes that any
//! link has got since the card was last idle; when a frame ends is known by that number as soon as it joins.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Card {
    /// The bytes that each link got which had frames all the time, at `time_s`.
    served: f64,
    time_s: f64,
    /// When it was last idle, or when the last frame had passed.
    since_s: f64,
    flows: HashMap<u32, Flow>,
    /// All frames, by how much their link has got when they have passed. No number is negative, so their bits sort as
    /// they do.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// The frame that passes first if no other joins, and when.
    next: Option<(u32, f64)>,
}

#[derive(Debug)]
struct Flow {
    /// By how much it has got when the last of them has passed.
    end: f64,
    transits: VecDeque<u32>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// The frame behind it on its link, which begins to pass.
    pub(super) follower: Option<u32>,
    /// Since when the card was busy without the end of a frame.
    pub(super) since_s: f64,
}

impl Card {
    /// A frame of a link joins; whether it begins to pass at once.
    pub(super) fn join(
        &mut self,
        frame: (u32, u32),
        bytes: u64,
        now_s: f64,
        s_per_byte: f64,
    ) -> bool {
        let (link, transit) = frame;
        self.serve_until(now_s, s_per_byte);
        let served = self.served;
        let flow = self
            .flows
            .entry(link)
            .or_insert_with(|| Flow { end: served, transits: VecDeque::new() });
        flow.end += bytes as f64;
        flow.transits.push_back(transit);
        self.ends.push(Reverse((flow.end.to_bits(), transit)));
        flow.transits.len() == 1
    }

    /// The frame that passes next and when, if no other joins before.
    pub(super) fn next(&mut self, s_per_byte: f64) -> Option<(u32, f64)> {
        let &Reverse((end, transit)) = self.ends.peek()?;
        let share = self.flows.len() as f64 * s_per_byte;
        let left = f64::from_bits(end) - self.served;
        self.next = Some((transit, self.time_s + left.max(0.0) * share));
        self.next
    }

    /// The end of the frame that is next, or nothing where another has joined since this end was predicted.
    pub(super) fn pass(&mut self, link: u32, transit: u32, now_s: f64) -> Option<Passed> {
        if self.next != Some((transit, now_s)) {
            return None;
        }
        let Reverse((end, _)) = self.ends.pop()?;
        let since_s = std::mem::replace(&mut self.since_s, now_s);
        (self.served, self.time_s, self.next) = (f64::from_bits(end), now_s, None);
        let flow = self.flows.get_mut(&link)?;
        flow.transits.pop_front();
        let follower = flow.transits.front().copied();
        if follower.is_none() {
            self.flows.remove(&link);
        }
        Some(Passed { follower, since_s })
    }

    fn serve_until(&mut self, now_s: f64, s_per_byte: f64) {
        if self.flows.is_empty() {
            (self.served, self.since_s) = (0.0, now_s);
        } else if s_per_byte > 0.0 {
            let share = self.flows.len() as f64 * s_per_byte;
            self.served += (now_s - self.time_s).max(0.0) / share;
        }
        self.time_s = now_s;
    }
}
