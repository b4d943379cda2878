//! What a figure must hold where all ranks share one device, and whether it does.
//!
//! The figures are those that the engine was designed to reach on one H200. A device each is another
//! machine, with other limits: nothing is said there.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::selftest) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::selftest) struct Verdict {
    pub(in crate::selftest) figure: f64,
    pub(in crate::selftest) bound: Bound,
}

impl Bound {
    pub(in crate::selftest) fn of(self, figure: f64) -> Verdict {
        Verdict {
            figure,
            bound: self,
        }
    }
}

impl Verdict {
    pub(in crate::selftest) fn holds(self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.figure >= least,
            Bound::AtMost(most) => self.figure <= most,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, limit) = match self.bound {
            Bound::AtLeast(least) => (">=", least),
            Bound::AtMost(most) => ("<=", most),
        };
        let end = if self.holds() { "holds" } else { "MISSED" };
        write!(f, "must be {sign} {limit}: {end}")
    }
}

/// The latency of an all-reduce of 1 to 64 KiB, in microseconds; of other numbers of ranks nothing is asked.
pub(in crate::selftest) fn latency_us_max(ranks: u32, bytes: usize) -> Option<f64> {
    let most = match ranks {
        2 => 8.0,
        4 => 20.0,
        8 => 50.0,
        _ => return None,
    };
    ((1 << 10)..=(64 << 10)).contains(&bytes).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_on_its_bound_holds() {
        for (verdict, holds) in [
            (Bound::AtLeast(0.9).of(0.9), true),
            (Bound::AtLeast(0.9).of(0.89), false),
            (Bound::AtMost(8.0).of(8.0), true),
            (Bound::AtMost(8.0).of(8.01), false),
            (Bound::AtMost(8.0).of(f64::NAN), false),
        ] {
            assert_eq!(verdict.holds(), holds, "{verdict:?}");
        }
        let missed = Bound::AtMost(1.15).of(1.2).to_string();
        assert_eq!(missed, "must be <= 1.15: MISSED");
        assert_eq!(
            Bound::AtLeast(2.2).of(3.0).to_string(),
            "must be >= 2.2: holds"
        );
    }

    #[test]
    fn latency_is_bounded_where_it_is_asked_for() {
        assert_eq!(latency_us_max(2, 1 << 10), Some(8.0));
        assert_eq!(latency_us_max(8, 64 << 10), Some(50.0));
        assert_eq!(latency_us_max(4, (64 << 10) + 1), None);
        assert_eq!(latency_us_max(4, 1023), None);
        assert_eq!(latency_us_max(3, 1 << 10), None);
    }
}
