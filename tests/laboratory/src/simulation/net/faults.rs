//! What goes wrong between hosts.

use std::io::ErrorKind;
use std::time::Duration;

use super::events::NetEvent;
use super::wires::{Cut, Entry};
use crate::simulation::state::{Event, State};

impl State {
    /// Nothing passes between these hosts and the others.
    pub(crate) fn cut(&mut self, side: u64, span: Option<Duration>) {
        let until = span.map(|span| self.now + span);
        self.wires.cuts.push(Cut { side, until });
        for socket in 0..self.wires.entries.len() {
            if matches!(self.wires.entries[socket], Entry::Endpoint(_)) {
                self.expect_silence(socket);
            }
        }
    }

    /// Plans the end of a connection to a host that is cut off, if its owner wants one.
    pub(crate) fn expect_silence(&mut self, socket: usize) {
        let hosts = self.hosts_of(socket);
        let silence_max = self.wires.endpoint(socket).silence_max;
        if let Some(silence_max) = silence_max
            && self.wires.cut_between(hosts, self.now).is_some()
        {
            let at = self.now + silence_max;
            self.plan(at, Event::Net(NetEvent::Silence { socket }));
        }
    }

    pub(crate) fn reset_between(&mut self, [one, other]: [usize; 2]) {
        for socket in 0..self.wires.entries.len() {
            if !matches!(self.wires.entries[socket], Entry::Endpoint(_)) {
                continue;
            }
            let hosts = self.hosts_of(socket);
            if hosts == [one, other] || hosts == [other, one] {
                self.fail(socket, ErrorKind::ConnectionReset);
            }
        }
    }
}
