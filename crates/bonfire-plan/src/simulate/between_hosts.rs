//! How a transit passes from host to host: out of one network card and into another.

use super::card::{Card, Passed};
use super::engine::Engine;
use super::events::Hop;
use super::program::LinkEnds;
use super::trace::Transit;
use super::{Activity, Class, Lane, Span};
use crate::Rank;

impl Engine<'_> {
    /// A transit's first byte reaches the card out at `reach_s`.
    pub(super) fn leave_host(&mut self, transit: u32, reach_s: f64) {
        let (ends, bytes) = self.cargo(transit);
        let nic = &mut self.nics[ends.port_out as usize];
        nic.frames_sent += 1;
        nic.bytes_sent += bytes;
        if self.join(Hop::Left, transit, reach_s) {
            let latency_s = self.transit_latency_s(transit);
            self.expect(reach_s + latency_s, 0, transit, Hop::In);
        }
    }

    /// A transit's first byte reaches the card in at `reach_s`.
    pub(super) fn enter_host(&mut self, transit: u32, reach_s: f64) {
        let (ends, bytes) = self.cargo(transit);
        self.nics[ends.port_in as usize].bytes_received += bytes;
        self.join(Hop::Entered, transit, reach_s);
    }

    /// A transit has left its host, if nobody has joined it since this was predicted.
    pub(super) fn left(&mut self, transit: u32, now_s: f64) {
        let Some(Passed { follower, .. }) = self.pass(Hop::Left, transit, now_s) else {
            return;
        };
        if let Some(follower) = follower {
            let latency_s = self.transit_latency_s(follower);
            self.expect(now_s + latency_s, 0, follower, Hop::In);
        }
        let alone_s = self.alone_s(transit);
        let leaving = &mut self.transits[transit as usize];
        leaving.queued_out_s = (now_s - leaving.issued_s - alone_s).max(0.0) as f32;
        self.arrive(transit, now_s + self.transit_latency_s(transit));
    }

    /// A transit has entered its host, if nobody has joined it since this was predicted.
    pub(super) fn entered(&mut self, transit: u32, now_s: f64) {
        if self.pass(Hop::Entered, transit, now_s).is_some() {
            self.arrive(transit, now_s);
        }
    }

    /// A transit has passed one of its two cards, so it is not there before `arrived_s`.
    fn arrive(&mut self, transit: u32, arrived_s: f64) {
        let undisturbed_s = self.transit_latency_s(transit) + self.alone_s(transit);
        let arriving = &mut self.transits[transit as usize];
        arriving.arrived_s = arriving.arrived_s.max(arrived_s);
        if !std::mem::replace(&mut arriving.is_halfway, true) {
            return;
        }
        let undelayed_s = arriving.issued_s + f64::from(arriving.queued_out_s) + undisturbed_s;
        arriving.queued_in_s = (arriving.arrived_s - undelayed_s).max(0.0) as f32;
        let (ends, _) = self.cargo(transit);
        self.deliver(transit, &ends);
    }

    /// How long a card takes for a transit that it has to itself.
    fn alone_s(&self, transit: u32) -> f64 {
        self.cargo(transit).1 as f64 * self.costs[Class::Inter as usize].s_per_byte
    }

    /// A transit joins those in the card that it passes by this hop; whether it begins to pass at once.
    fn join(&mut self, hop: Hop, transit: u32, now_s: f64) -> bool {
        let (ends, bytes) = self.cargo(transit);
        let s_per_byte = self.costs[Class::Inter as usize].s_per_byte;
        let frame = (self.transits[transit as usize].link, transit);
        let begins = self.card(hop, &ends).join(frame, bytes, now_s, s_per_byte);
        self.expect_next(hop, &ends);
        begins
    }

    /// A transit has passed the card of this hop, unless another has joined it since this was predicted.
    fn pass(&mut self, hop: Hop, transit: u32, now_s: f64) -> Option<Passed> {
        let (ends, _) = self.cargo(transit);
        let Transit { link, .. } = self.transits[transit as usize];
        let lane = match hop {
            Hop::Left => Lane::NicOut(ends.port_out),
            _ => Lane::NicIn(ends.port_in),
        };
        let passed = self.card(hop, &ends).pass(link, transit, now_s)?;
        let s_per_byte = self.costs[Class::Inter as usize].s_per_byte;
        self.note(Span {
            lane,
            activity: Activity::Transfer,
            peer: Some(Rank::new(ends.target)),
            bytes: ((now_s - passed.since_s) / s_per_byte).round() as u64,
            start_s: passed.since_s,
            end_s: now_s,
        });
        self.expect_next(hop, &ends);
        Some(passed)
    }

    fn expect_next(&mut self, hop: Hop, ends: &LinkEnds) {
        let s_per_byte = self.costs[Class::Inter as usize].s_per_byte;
        if let Some((transit, time_s)) = self.card(hop, ends).next(s_per_byte) {
            self.expect(time_s, 0, transit, hop);
        }
    }

    /// The card that a transit between these ends passes by this hop.
    fn card(&mut self, hop: Hop, ends: &LinkEnds) -> &mut Card {
        match hop {
            Hop::Left => &mut self.cards_out[ends.port_out as usize],
            _ => &mut self.cards_in[ends.port_in as usize],
        }
    }
}
