//! Cuts a stream of output into lines, in bounded memory. Pure.

/// Longest line that is kept whole; a longer one is cut into pieces of this length, so that a rank
/// that never ends its line cannot fill the launcher's memory.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 10;

/// A piece of output, without the bytes that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A line, or a part of one too long.
    Line(&'a [u8]),
    /// A line that the next one is to overwrite, as a progress bar's.
    Status(&'a [u8]),
    /// What will be a status or a line, as far as it is known, to be shown without delay; the same
    /// comes again when it is complete.
    Preview(&'a [u8]),
}

/// Holds the line that has begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
    /// The last byte was a carriage return: whether a line or a status ended is not known before the next byte.
    returned: bool,
    /// What is pending began after a carriage return, so it overwrites what was before.
    overwrites: bool,
}

impl Lines {
    /// Takes the next bytes and hands out the pieces that they complete, and a preview of one that
    /// overwrites or will be overwritten.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut emit: impl FnMut(Piece<'_>)) {
        for &byte in bytes {
            self.push(byte, &mut emit);
        }
        if (self.overwrites || self.returned) && !self.pending.is_empty() {
            emit(Piece::Preview(&self.pending));
        }
    }

    /// The stream has ended, and with it the line that has begun.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(Piece<'_>)) {
        if !self.pending.is_empty() {
            emit(Piece::Line(&self.pending));
        }
        *self = Self::default();
    }

    fn push(&mut self, byte: u8, emit: &mut impl FnMut(Piece<'_>)) {
        match byte {
            b'\n' => {
                emit(Piece::Line(&self.pending));
                self.pending.clear();
                self.returned = false;
                self.overwrites = false;
            }
            b'\r' => self.returned = true,
            _ => {
                if self.returned {
                    if !self.pending.is_empty() {
                        emit(Piece::Status(&self.pending));
                        self.pending.clear();
                    }
                    self.returned = false;
                    self.overwrites = true;
                }
                self.pending.push(byte);
                if self.pending.len() == LINE_BYTES_MAX {
                    emit(Piece::Line(&self.pending));
                    self.pending.clear();
                }
            }
        }
        debug_assert!(self.pending.len() < LINE_BYTES_MAX, "{} bytes", self.pending.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of some output, `L` for lines, `S` for statuses and `P` for previews.
    fn pieces(chunks: &[&str]) -> Vec<String> {
        let mut seen = Vec::new();
        let mut note = |piece: Piece<'_>| {
            let (kind, text) = match piece {
                Piece::Line(text) => ('L', text),
                Piece::Status(text) => ('S', text),
                Piece::Preview(text) => ('P', text),
            };
            seen.push(format!("{kind}{}", String::from_utf8_lossy(text)));
        };
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.feed(chunk.as_bytes(), &mut note);
        }
        lines.finish(&mut note);
        seen
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let expected = ["Lone", "L", "Ltwo"];
        assert_eq!(pieces(&["one\n\ntwo\n"]), expected);
        assert_eq!(pieces(&["o", "ne", "\n", "\nt", "wo", "\n"]), expected);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        assert_eq!(pieces(&["one\ntwo"]), ["Lone", "Ltwo"]);
        assert_eq!(pieces(&[""]), Vec::<String>::new());
    }

    #[test]
    fn a_carriage_return_before_a_newline_is_no_status() {
        assert_eq!(pieces(&["one\r\ntwo\r\n"]), ["Lone", "Ltwo"]);
        assert_eq!(pieces(&["one\r", "\n"]), ["Pone", "Lone"]);
    }

    #[test]
    fn what_a_carriage_return_overwrites_is_a_status() {
        assert_eq!(pieces(&["10%\r20%\r30%\n"]), ["S10%", "S20%", "L30%"]);
    }

    #[test]
    fn a_status_is_shown_before_the_next_one_comes() {
        assert_eq!(
            pieces(&["10%\r", "20%\r", "done\n"]),
            ["P10%", "S10%", "P20%", "S20%", "Ldone"]
        );
        assert_eq!(
            pieces(&["\r10%", "\r20%", "\ndone\n"]),
            ["P10%", "S10%", "P20%", "L20%", "Ldone"]
        );
    }

    #[test]
    fn an_endless_line_is_cut() {
        let endless = "x".repeat(LINE_BYTES_MAX * 2 + 5);
        let seen = pieces(&[&endless]);
        let lengths: Vec<usize> = seen.iter().map(|piece| piece.len() - 1).collect();
        assert_eq!(lengths, [LINE_BYTES_MAX, LINE_BYTES_MAX, 5]);
    }
}
