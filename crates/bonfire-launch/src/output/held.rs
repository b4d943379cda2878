//! Lines of ranks that wait for their turn on the screen.

use std::collections::VecDeque;

use super::screen::Channel;

/// How much waits at most. A training draws for hours; what its ranks said last is what matters.
const HELD_BYTES_MAX: usize = 1 << 20;

/// Lines in the order in which they came, each with its end; the oldest make way.
#[derive(Debug, Default)]
pub(crate) struct Held {
    lines: VecDeque<(Channel, Vec<u8>)>,
    bytes: usize,
    lost: usize,
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn push(&mut self, channel: Channel, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back((channel, line));
        while self.bytes > HELD_BYTES_MAX
            && self.lines.len() > 1
            && let Some((_, oldest)) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
            self.lost += 1;
        }
    }

    /// All lines, and how many others had to make way.
    pub(crate) fn take(&mut self) -> (VecDeque<(Channel, Vec<u8>)>, usize) {
        let Self { lines, lost, .. } = std::mem::take(self);
        (lines, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_make_way() {
        let mut held = Held::default();
        let long = vec![b'x'; HELD_BYTES_MAX / 2];
        for line in [long.clone(), long.clone(), b"last\n".to_vec()] {
            held.push(Channel::Output, line);
        }
        let (lines, lost) = held.take();
        assert_eq!((lines.len(), lost), (2, 1));
        assert_eq!(lines[1].1, b"last\n");
        assert!(held.is_empty());
        // One line is kept, however long.
        held.push(Channel::Error, vec![b'y'; 2 * HELD_BYTES_MAX]);
        let (lines, lost) = held.take();
        assert_eq!((lines.len(), lost), (1, 0));
    }
}
