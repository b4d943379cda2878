//! What a figure must hold where all ranks share one device, and whether it does.
//!
//! The figures are those that the engine was designed to reach on one H200. A device each is another
//! machine, with other limits: it has no bounds.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) figure: f64,
    pub(super) bound: Bound,
}

impl Bound {
    pub(super) fn of(self, figure: f64) -> Verdict {
        Verdict { figure, bound: self }
    }
}

impl Verdict {
    pub(super) fn holds(self) -> bool {
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
        assert_eq!(Bound::AtLeast(2.2).of(3.0).to_string(), "must be >= 2.2: holds");
    }
}
