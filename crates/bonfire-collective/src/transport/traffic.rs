//! How much a rank has moved over its links.

/// Frames and payload that a rank has sent to and received from all its peers since the group was formed. Headers are
/// not payload; what ranks read from each other's memory in place is not a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Frames sent, those without payload included.
    pub frames_sent: u64,
    /// Frames that were received and used.
    pub frames_received: u64,
    /// Bytes of payload in the frames sent.
    pub payload_bytes_sent: u64,
    /// Bytes of payload in the frames received and used.
    pub payload_bytes_received: u64,
}

impl Traffic {
    pub(super) fn count_sent(&mut self, payload: &[u8]) {
        self.frames_sent += 1;
        self.payload_bytes_sent += payload.len() as u64;
    }

    pub(super) fn count_received(&mut self, payload_bytes: usize) {
        self.frames_received += 1;
        self.payload_bytes_received += payload_bytes as u64;
    }
}

/// The sum of two counts.
impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            frames_sent: self.frames_sent + other.frames_sent,
            frames_received: self.frames_received + other.frames_received,
            payload_bytes_sent: self.payload_bytes_sent + other.payload_bytes_sent,
            payload_bytes_received: self.payload_bytes_received + other.payload_bytes_received,
        }
    }
}
